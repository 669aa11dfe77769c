//! Text to samples: BOS, prompt, completion, EOS, and the targets among them.

use std::{borrow::Cow, iter, ops::Range, sync::Arc};

use crate::{
    chat::ChatTemplate,
    error::{DataError, NoTarget, RowError, TemplateError},
    message::{Conversation, Message},
    preference::{Completions, PreferenceFault},
    render::{Renderer, RowText, Switch},
    row::Row,
    sample::Sample,
    tokenizer::{Beginning, Tokenizer},
};

/// The settings that determine a row's tokens and mask.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    renderer: &'a Renderer,
    /// The dataset's own chat template, otherwise the tokenizer's.
    chat_template: Option<Cow<'a, ChatTemplate>>,
    eos: u32,
    max_seq_len: usize,
    train_on_prompt: bool,
}

/// A row's sample, or those of both its completions; possibly without targets.
#[derive(Debug)]
pub(crate) struct EncodedRow {
    pub(crate) samples: Vec<Sample>,
    /// Tokens of each before it was cut, which are estimates for rows so long that only a part was tokenised.
    pub(crate) tokens: Vec<usize>,
    /// Targets of all samples; 0 if the row cannot be used.
    pub(crate) targets: usize,
    /// Each sample has an EOS token of the model among its targets.
    pub(crate) trains_eos: bool,
    /// The reason why it has no target, unless it has one or all were cut off.
    pub(crate) reason: Option<NoTarget>,
    /// The tokens of its prompt with the beginning of an answer do not begin its samples.
    pub(crate) other_prompt: bool,
}

impl EncodedRow {
    /// Tokens of the longest sample before it was cut.
    pub(crate) fn longest(&self) -> usize {
        self.tokens.iter().copied().max().unwrap_or(0)
    }
}

impl<'a> Encoder<'a> {
    /// An encoder for the dataset named `dataset`.
    ///
    /// # Errors
    /// [`DataError::NoEos`], [`DataError::NoChatTemplate`] if the rows are messages, and
    /// [`DataError::PreferencesOfPrompts`].
    pub(crate) fn new(
        dataset: &str,
        tokenizer: &'a Tokenizer,
        renderer: &'a Renderer,
        max_seq_len: usize,
        train_on_prompt: bool,
    ) -> Result<Self, DataError> {
        let directory = || tokenizer.directory().to_owned();
        let eos = tokenizer
            .eos()
            .ok_or_else(|| DataError::NoEos(directory()))?;
        let (own, are_chats) = match renderer {
            Renderer::Chat { template, .. } => (template.as_deref(), true),
            Renderer::Preference(_) if train_on_prompt => {
                return Err(DataError::PreferencesOfPrompts(dataset.to_owned()));
            }
            Renderer::Preference(columns) => {
                (columns.template.as_deref(), columns.prompt.is_none())
            }
            _ => (None, false),
        };
        let chat_template = match own {
            Some(own) => {
                let tokens = tokenizer.special_tokens().clone();
                Some(Cow::Owned(own.clone().with_special_tokens(tokens)))
            }
            None => tokenizer.chat_template().map(Cow::Borrowed),
        };
        if are_chats && chat_template.is_none() {
            return Err(DataError::NoChatTemplate {
                dataset: dataset.to_owned(),
                directory: directory(),
            });
        }
        Ok(Self {
            tokenizer,
            renderer,
            chat_template,
            eos,
            max_seq_len,
            train_on_prompt,
        })
    }

    /// Longer rows are cut to this many tokens.
    pub(crate) fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The row's tokens, cut to `max_seq_len`.
    pub(crate) fn encode(&self, row: &Row) -> Result<EncodedRow, DataError> {
        let (all, other_prompt) = self.tokens(row).map_err(|problem| row.error(problem))?;
        let all = all.into_iter().map(|(tokens, preferred)| {
            let (sample, tokens) = self.finish(tokens);
            (
                Sample {
                    preferred,
                    ..sample
                },
                tokens,
            )
        });
        let (samples, tokens): (Vec<Sample>, Vec<usize>) = all.unzip();
        let fault = self.fault(&samples);
        let targets = match fault {
            Some(_) => 0,
            None => samples.iter().map(Sample::num_targets).sum(),
        };
        let is_cut = iter::zip(&samples, &tokens).any(|(sample, tokens)| *tokens > sample.len());
        let no_target = || match fault {
            Some(fault) => Some(NoTarget::Preference(fault)),
            None => self.renderer.no_target(row, is_cut),
        };
        let eos = self.tokenizer.eos_ids();
        Ok(EncodedRow {
            targets,
            trains_eos: samples.iter().all(|sample| sample.trains_any(eos)),
            reason: (targets == 0).then(no_target).flatten(),
            samples,
            tokens,
            other_prompt,
        })
    }

    /// The reason why a pair cannot be used. Paraphrases may be equal.
    fn fault(&self, samples: &[Sample]) -> Option<PreferenceFault> {
        let [chosen, rejected] = samples else {
            return None;
        };
        if samples.iter().any(|sample| sample.num_targets() == 0) {
            Some(PreferenceFault::CutOff(self.max_seq_len))
        } else if chosen.ids == rejected.ids && chosen.preferred.is_some() {
            Some(PreferenceFault::SameTokens(self.max_seq_len))
        } else {
            None
        }
    }

    /// Each completion behind the tokens of the prompt.
    fn preferences(&self, completions: &Completions) -> Result<Uncut, RowError> {
        match completions {
            Completions::Text {
                prompt,
                completions,
            } => {
                let prompt = self.text(prompt)?;
                let completions = completions.iter().map(|(completion, preferred)| {
                    let mut tokens = Tokens::default();
                    tokens.extend(prompt.clone(), false);
                    tokens.extend(self.text(completion)?, true);
                    self.end(&mut tokens, true);
                    Ok((tokens, Some(*preferred)))
                });
                Ok((completions.collect::<Result<_, RowError>>()?, false))
            }
            Completions::Chat {
                prompt,
                completions,
            } => {
                let template = self.chat_template()?;
                let text = |messages: &[Message], generation_prompt| {
                    let text = template.render_with(messages, &prompt.tools, generation_prompt)?;
                    self.text(&text)
                };
                let alone = text(&prompt.messages, true)?;
                let sides = completions
                    .iter()
                    .map(|(completion, _)| text(&[&*prompt.messages, completion].concat(), false));
                let sides = sides.collect::<Result<Vec<_>, RowError>>()?;
                // As in TRL: the tokens that the prompt alone and all sides begin with.
                let begun = |side: &Beginning| {
                    let pairs = alone.ids.iter().zip(&side.ids);
                    pairs.take_while(|(one, other)| one == other).count()
                };
                let shared = sides.iter().map(begun).min().unwrap_or(0);
                let samples = sides.into_iter().zip(completions);
                let samples = samples.map(|(side, (_, preferred))| {
                    let is_target = (0..side.ids.len()).map(|at| at >= shared).collect();
                    let tokens = Tokens {
                        ids: side.ids,
                        is_target,
                        beyond: side.beyond,
                    };
                    (tokens, Some(*preferred))
                });
                let kept = alone.ids.len().min(self.max_seq_len);
                Ok((samples.collect(), shared < kept))
            }
        }
    }

    fn tokens(&self, row: &Row) -> Result<Uncut, RowError> {
        let mut tokens = Tokens::default();
        let marks = self.renderer.marks();
        match self.renderer.render(row)? {
            RowText::PromptCompletion { prompt, completion } => {
                tokens.extend(self.text(&prompt)?, self.train_on_prompt);
                tokens.extend(self.text(&completion)?, true);
            }
            RowText::Text(text) => match marks {
                Some(template) => {
                    tokens = self.marked(&text, |_| template.target_spans(row, None, &text))?;
                }
                None => tokens.extend(self.text(&text)?, true),
            },
            RowText::Chat(conversation) => {
                return Ok((vec![(self.chat(&conversation)?, None)], false));
            }
            RowText::Preference(completions) => return self.preferences(&completions),
            RowText::Both(texts) => return self.both(row, texts),
        }
        // A row whose template marks nothing trains nothing.
        let is_target = marks.is_none() || tokens.is_target.contains(&true);
        self.end(&mut tokens, is_target);
        Ok((vec![(tokens, None)], false))
    }

    /// The renderings of a template for the values of its switch.
    fn both(&self, row: &Row, texts: [Arc<str>; 2]) -> Result<Uncut, RowError> {
        let switch = self.renderer.switch();
        let sides = iter::zip(texts, [true, false]).map(|(text, is_on)| {
            let mut tokens = Tokens::default();
            let mut is_target = true;
            match self.renderer.marks() {
                Some(template) => {
                    let switched = switch.map(|switch| (switch, is_on));
                    let spans = |_| template.target_spans(row, switched, &text);
                    tokens = self.marked(&text, spans)?;
                    is_target = tokens.is_target.contains(&true);
                }
                None => tokens.extend(self.text(&text)?, true),
            }
            self.end(&mut tokens, is_target);
            Ok((tokens, (switch == Some(Switch::Chosen)).then_some(is_on)))
        });
        Ok((sides.collect::<Result<_, RowError>>()?, false))
    }

    /// Ends a text with EOS, unless it already does.
    fn end(&self, tokens: &mut Tokens, is_target: bool) {
        if tokens.ids.last() != Some(&self.eos) {
            tokens.ids.push(self.eos);
            tokens.is_target.push(is_target);
        }
    }

    fn chat_template(&self) -> Result<&ChatTemplate, TemplateError> {
        self.chat_template.as_deref().ok_or(TemplateError::Missing)
    }

    fn chat(&self, conversation: &Conversation) -> Result<Tokens, RowError> {
        let template = self.chat_template()?;
        let text = template.render_with(&conversation.messages, &conversation.tools, false)?;
        self.marked(&text, |limit| {
            template.target_spans(conversation, &text, limit)
        })
    }

    /// A text whose targets are `spans` of its bytes, at least those that begin before the byte that they are called
    /// with.
    fn marked(
        &self,
        text: &str,
        spans: impl FnOnce(usize) -> Result<Vec<Range<usize>>, TemplateError>,
    ) -> Result<Tokens, RowError> {
        let Beginning {
            ids,
            offsets,
            beyond,
        } = self
            .tokenizer
            .beginning_with_offsets(text, self.max_seq_len)
            .map_err(without_row)?;
        let is_target = if self.train_on_prompt {
            vec![true; ids.len()]
        } else {
            // Turns that are cut away need no mask.
            let limit = offsets
                .get(self.max_seq_len)
                .map_or(text.len(), |offset| offset.start);
            targets(&offsets, &spans(limit)?)
        };
        Ok(Tokens {
            ids,
            is_target,
            beyond,
        })
    }

    fn text(&self, text: &str) -> Result<Beginning, RowError> {
        self.tokenizer
            .beginning(text, self.max_seq_len)
            .map_err(without_row)
    }

    /// Puts one BOS first, cuts, and clears the target that nothing predicts. Returns the length before the cut, too.
    fn finish(&self, tokens: Tokens) -> (Sample, usize) {
        let Tokens {
            mut ids,
            mut is_target,
            beyond,
        } = tokens;
        let written = self.tokenizer.leading_bos(&ids);
        ids.splice(..written, self.tokenizer.bos());
        is_target.splice(..written, self.tokenizer.bos().map(|_| false));
        let tokens = ids.len() + beyond;
        ids.truncate(self.max_seq_len);
        is_target.truncate(self.max_seq_len);
        if let Some(first) = is_target.first_mut() {
            *first = false;
        }
        let sample = Sample {
            ids,
            is_target,
            preferred: None,
        };
        (sample, tokens)
    }
}

/// The samples of a row, each with whether it is preferred; and true if the tokens of the prompt alone do not begin
/// them.
type Uncut = (Vec<(Tokens, Option<bool>)>, bool);

#[derive(Debug, Default)]
struct Tokens {
    ids: Vec<u32>,
    is_target: Vec<bool>,
    /// Number of tokens that were left out, all of them beyond `max_seq_len`.
    beyond: usize,
}

impl Tokens {
    fn extend(&mut self, text: Beginning, is_target: bool) {
        self.ids.extend(text.ids);
        self.is_target.resize(self.ids.len(), is_target);
        self.beyond += text.beyond;
    }
}

/// Per token, whether any byte of it lies in a span. Both lists are in the order of the text.
fn targets(offsets: &[Range<usize>], spans: &[Range<usize>]) -> Vec<bool> {
    let mut next = 0;
    let mut previous_end = 0;
    offsets
        .iter()
        .map(|offset| {
            // A token of white space alone may have had all its bytes trimmed off.
            let start = if offset.is_empty() {
                previous_end.min(offset.start)
            } else {
                offset.start
            };
            previous_end = offset.end;
            while spans.get(next).is_some_and(|span| span.end <= start) {
                next += 1;
            }
            spans.get(next).is_some_and(|span| span.start < offset.end)
        })
        .collect()
}

/// The tokenizer's error, without the location of the row.
fn without_row(error: DataError) -> RowError {
    RowError::Tokenize(match error {
        DataError::Tokenize(reason) => reason,
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::targets;

    fn slow_targets(offsets: &[Range<usize>], spans: &[Range<usize>]) -> Vec<bool> {
        offsets
            .iter()
            .map(|offset| {
                offset
                    .clone()
                    .any(|byte| spans.iter().any(|span| span.contains(&byte)))
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_token_is_a_target_if_one_of_its_bytes_is(
            cuts in prop::collection::btree_set(0_usize..60, 1..20),
            edges in prop::collection::btree_set(0_usize..60, 0..10),
        ) {
            let cuts: Vec<_> = cuts.into_iter().collect();
            let offsets: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            let edges: Vec<_> = edges.into_iter().collect();
            let spans: Vec<_> = edges.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            prop_assert_eq!(targets(&offsets, &spans), slow_targets(&offsets, &spans));
        }
    }

    #[test]
    fn a_trimmed_token_stands_for_the_bytes_since_the_last_one() {
        assert_eq!(
            targets(&[0..2, 3..3, 3..5], &[2..3, 9..9]),
            [false, true, false]
        );
    }

    #[test]
    fn tokens_of_one_character_share_its_bytes() {
        assert_eq!(
            targets(&[0..4, 0..4, 4..5], &[0..4, 9..9]),
            [true, true, false]
        );
    }
}
