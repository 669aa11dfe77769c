/// Whether the rows of a batch are made equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// A batch holds the tokens of its rows and nothing else, as loraloom's batches do.
    #[default]
    None,
    /// All rows of a batch are padded to its longest row, as mLoRA's are.
    ToLongest,
}
