"""A stand-in for NVIDIA's management library, built where there is a C compiler."""
