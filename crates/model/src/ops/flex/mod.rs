use burn::backend::Flex;

use super::DecoderOps;

impl DecoderOps for Flex {}
