import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "bo": ["PermutationBO"],
        "features": ["from_merge_features", "mallows_features", "merge_features", "merge_length"],
        "method": ["MallowsKernel", "MergeKernel", "optimize_acqf_permutation"],
    },
)
