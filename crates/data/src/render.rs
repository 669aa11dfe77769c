//! A row to the text that will be tokenised.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use loraloom_config::{ColumnMap, Preference};
use minijinja::{Environment, Value, context};

use crate::{
    chat::ChatTemplate,
    error::{NoTarget, RowError, TemplateError},
    generation::{self, MARKED},
    jinja::{self, row_environment, syntax_error},
    message::{Conversation, Message},
    preference::{CompletionColumns, Completions, PreferenceColumns, PreferenceFault},
    row::{Row, SYSTEM},
};

/// A row's text, by its targets.
#[derive(Debug, Hash)]
pub(crate) enum RowText {
    /// The completion is the target.
    PromptCompletion {
        prompt: Arc<str>,
        completion: Arc<str>,
    },
    /// The whole text is trained, or what [`Renderer::marks`] marks.
    Text(Arc<str>),
    /// The chat template decides.
    Chat(Conversation),
    /// The completions are the targets, each of a sample of its own.
    Preference(Completions),
    /// Both are samples as [`Text`](Self::Text) is: the first with the template's [`Switch`] on.
    Both([Arc<str>; 2]),
}

/// A variable that a template reads, and that is true in one rendering of a row and false in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    /// The row with its better completion, or with its worse one.
    Chosen,
    /// The row with its instruction, or with a paraphrase.
    Origin,
}

/// Renders the rows of a dataset as text.
#[derive(Debug)]
pub(crate) enum Renderer {
    /// A column, or a template over the whole row.
    Text(Source),
    /// A prompt and the column with its completion.
    PromptCompletion { prompt: Source, completion: String },
    /// A column of messages and the template that replaces the tokenizer's, if any.
    Chat {
        column: String,
        template: Option<Box<ChatTemplate>>,
    },
    /// A prompt with two completions, or with one that is rated.
    Preference(PreferenceColumns),
    /// A template over the whole row, once for each value of a variable.
    Both(Box<RowTemplate>, Switch),
}

/// Source of a text.
#[derive(Debug)]
pub(crate) enum Source {
    Column(String),
    Instruction {
        instruction: String,
        input: Option<String>,
        /// The row's `system` comes first, and is none of the other columns.
        system: bool,
    },
    Template(Box<RowTemplate>),
}

impl Renderer {
    /// The whole row from a template, twice if it reads a [`Switch`].
    pub(crate) fn from_template(template: &str) -> Result<Self, TemplateError> {
        let template = Box::new(RowTemplate::new(template)?);
        let mut switches = Switch::ALL.into_iter();
        let switch = switches.find(|switch| template.reads_variable(switch.name()));
        Ok(match switch {
            Some(switch) => Self::Both(template, switch),
            None => Self::Text(Source::Template(template)),
        })
    }

    /// From columns; a template renders the prompt where there is a completion, the chat where there
    /// are messages, and the whole row of plain text.
    pub(crate) fn from_columns(
        columns: &ColumnMap,
        template: Option<&str>,
    ) -> Result<Self, TemplateError> {
        let or_template = |source: Source| match template {
            Some(template) => Source::from_template(template),
            None => Ok(source),
        };
        let as_prompt = |source: Source| match or_template(source)? {
            Source::Template(template) if template.marks => Err(TemplateError::MarkedPrompt),
            source => Ok(source),
        };
        let chat = |template: Option<&str>| {
            let compile = |template| ChatTemplate::new(template, BTreeMap::new()).map(Box::new);
            template.map(compile).transpose()
        };
        let preference = |prompt: Option<Source>, completions| {
            // Chat templates read `messages`; others render the prompt.
            let of_chats = match (&prompt, template) {
                (None, _) | (_, None) => true,
                (Some(_), Some(template)) => RowTemplate::new(template)?.reads("messages"),
            };
            Ok(Self::Preference(PreferenceColumns {
                prompt: match prompt {
                    Some(source) if !of_chats => Some(as_prompt(source)?),
                    prompt => prompt,
                },
                completions,
                template: chat(template.filter(|_| of_chats))?,
            }))
        };
        let instruction = |instruction: &String, input: &Option<String>, others: &[&String]| {
            let columns = others.iter().copied().chain([instruction]).chain(input);
            Source::Instruction {
                instruction: instruction.clone(),
                input: input.clone(),
                system: !columns.into_iter().any(|column| column == SYSTEM),
            }
        };
        let pair = |chosen: &String, rejected: &String| CompletionColumns::Pair {
            chosen: chosen.clone(),
            rejected: rejected.clone(),
        };
        let rated = |completion: &String, label: &String| CompletionColumns::Rated {
            completion: completion.clone(),
            label: label.clone(),
        };
        let column = |name: &String| Source::Column(name.clone());
        Ok(match columns {
            ColumnMap::Messages { messages: column }
            | ColumnMap::Conversations {
                conversations: column,
            } => Self::Chat {
                column: column.clone(),
                template: chat(template)?,
            },
            ColumnMap::PromptCompletion { prompt, completion } => Self::PromptCompletion {
                prompt: as_prompt(column(prompt))?,
                completion: completion.clone(),
            },
            ColumnMap::Instruction {
                instruction: asked,
                input,
                output,
            } => Self::PromptCompletion {
                prompt: as_prompt(instruction(asked, input, &[output]))?,
                completion: output.clone(),
            },
            ColumnMap::Text { text } => Self::Text(or_template(column(text))?),
            ColumnMap::Pairs {
                prompt,
                chosen,
                rejected,
            } => preference(prompt.as_ref().map(column), pair(chosen, rejected))?,
            ColumnMap::InstructionPairs {
                instruction: asked,
                input,
                chosen,
                rejected,
            } => preference(
                Some(instruction(asked, input, &[chosen, rejected])),
                pair(chosen, rejected),
            )?,
            ColumnMap::Rated {
                prompt,
                completion,
                label,
            } => preference(Some(column(prompt)), rated(completion, label))?,
            ColumnMap::RatedInstruction {
                instruction: asked,
                input,
                output,
                label,
            } => preference(
                Some(instruction(asked, input, &[output, label])),
                rated(output, label),
            )?,
            ColumnMap::RatedMessages { messages, label } => {
                preference(None, rated(messages, label))?
            }
        })
    }

    /// The row's text.
    ///
    /// # Errors
    /// A missing column, a column of another type, a template that fails.
    pub(crate) fn render(&self, row: &Row) -> Result<RowText, RowError> {
        Ok(match self {
            Self::Text(source) => RowText::Text(source.render(row)?),
            Self::PromptCompletion { prompt, completion } => RowText::PromptCompletion {
                prompt: prompt.render(row)?,
                completion: row.text(completion)?,
            },
            Self::Chat { column, .. } => RowText::Chat(Conversation::parse(row, column)?),
            Self::Preference(columns) => RowText::Preference(columns.parse(row)?),
            Self::Both(template, switch) => {
                let [on, off] =
                    [true, false].map(|is_on| template.render(row, Some((*switch, is_on))));
                let texts = [Arc::<str>::from(on?), off?.into()];
                if *switch == Switch::Chosen && texts[0] == texts[1] {
                    return Err(PreferenceFault::SameText(switch.name()).into());
                }
                RowText::Both(texts)
            }
        })
    }

    /// The template that marks which parts of a text are trained on.
    pub(crate) fn marks(&self) -> Option<&RowTemplate> {
        match self {
            Self::Text(Source::Template(template)) | Self::Both(template, _) if template.marks => {
                Some(template)
            }
            _ => None,
        }
    }

    /// The reason why a row has no target, unless its targets were cut off.
    pub(crate) fn no_target(&self, row: &Row, is_cut: bool) -> Option<NoTarget> {
        if let Ok(RowText::Chat(conversation)) = self.render(row) {
            let messages = &conversation.messages;
            if !messages.iter().any(Message::is_trained) {
                if messages.iter().any(Message::is_assistant) {
                    return Some(NoTarget::NotTrained);
                }
                let roles = messages.iter().map(|message| message.role().to_owned());
                let roles = roles.collect::<BTreeSet<_>>().into_iter().collect();
                return Some(NoTarget::NoAssistant(roles));
            }
        }
        (!is_cut).then_some(NoTarget::NothingRendered)
    }

    /// The variable that makes two samples of a row.
    pub(crate) fn switch(&self) -> Option<Switch> {
        match self {
            Self::Both(_, switch) => Some(*switch),
            _ => None,
        }
    }

    /// The column that is trained on, unless a template or messages are.
    pub(crate) fn target_column(&self) -> Option<&str> {
        match self {
            Self::Text(Source::Column(column))
            | Self::PromptCompletion {
                completion: column, ..
            } => Some(column),
            _ => None,
        }
    }

    /// The column that is both prompt and completion.
    pub(crate) fn column_used_twice(&self) -> Option<&str> {
        let (prompt, completions) = match self {
            Self::PromptCompletion { prompt, completion } => (prompt, vec![completion.as_str()]),
            Self::Preference(columns) => (columns.prompt.as_ref()?, columns.completion_columns()),
            _ => return None,
        };
        let is_prompt = |completion: &&str| match prompt {
            Source::Column(column) => column == completion,
            Source::Instruction {
                instruction, input, ..
            } => instruction == completion || input.as_deref() == Some(completion),
            Source::Template(template) => template.reads(completion),
        };
        completions.into_iter().find(is_prompt)
    }

    /// The columns that are trained on or prompted with; `None` if rows are plain text, or a template chooses.
    pub(crate) fn columns(&self) -> Option<Vec<&str>> {
        let (prompt, mut columns) = match self {
            Self::Text(_) | Self::Both(..) => return None,
            Self::PromptCompletion { prompt, completion } => (prompt, vec![completion.as_str()]),
            Self::Chat { column, .. } => return Some(vec![SYSTEM, "tools", column]),
            Self::Preference(columns) => match &columns.prompt {
                Some(prompt) => (prompt, columns.completion_columns()),
                None => {
                    return Some([columns.completion_columns(), vec![SYSTEM, "tools"]].concat());
                }
            },
        };
        match prompt {
            Source::Template(_) => return None,
            Source::Column(prompt) => columns.push(prompt),
            Source::Instruction {
                instruction, input, ..
            } => {
                columns.extend([SYSTEM, instruction]);
                columns.extend(input.as_deref());
            }
        }
        Some(columns)
    }

    /// The column that rows may lack, but not all of them.
    pub(crate) fn optional_column(&self) -> Option<&str> {
        let prompt = match self {
            Self::PromptCompletion { prompt, .. } => Some(prompt),
            Self::Preference(columns) => columns.prompt.as_ref(),
            _ => None,
        };
        match prompt {
            Some(Source::Instruction { input, .. }) => input.as_deref(),
            _ => None,
        }
    }
}

impl Source {
    fn from_template(template: &str) -> Result<Self, TemplateError> {
        RowTemplate::new(template).map(Box::new).map(Self::Template)
    }

    pub(crate) fn render(&self, row: &Row) -> Result<Arc<str>, RowError> {
        match self {
            Self::Column(column) => row.text(column),
            Self::Template(template) => Ok(template.render(row, None)?.into()),
            // The system message, the instruction and the input, with blank lines between; a newline.
            Self::Instruction { system, .. } => {
                let system = if *system { row.system()? } else { None };
                let parts = [system, self.asked(row)?];
                let parts: Vec<_> = parts.into_iter().flatten().collect();
                Ok(format!("{}\n", parts.join("\n\n")).into())
            }
        }
    }

    /// An instruction and its input, as a user's message has them.
    pub(crate) fn asked(&self, row: &Row) -> Result<Option<Arc<str>>, RowError> {
        let Self::Instruction {
            instruction, input, ..
        } = self
        else {
            return Ok(None);
        };
        let instruction = row.text(instruction)?;
        let input = input
            .as_ref()
            .map(|input| row.optional_text(input))
            .transpose()?;
        let input = input.flatten().filter(|input| !input.is_empty());
        Ok(Some(match input {
            Some(input) => format!("{instruction}\n\n{input}").into(),
            None => instruction,
        }))
    }
}

impl Switch {
    const ALL: [Self; 2] = [Self::Chosen, Self::Origin];

    /// The variable's name, as in mLoRA's templates.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chosen => "is_chosen",
            Self::Origin => "is_origin",
        }
    }

    /// The roles of the two samples of a row.
    pub(crate) fn preference(self) -> Preference {
        match self {
            Self::Chosen => Preference::Pairs,
            Self::Origin => Preference::Paraphrases,
        }
    }
}

/// The name of the only template.
const NAME: &str = "template";

/// Jinja over a row's columns by name; `data_point` is the row as a whole, as in mLoRA's templates.
#[derive(Debug, Clone)]
pub(crate) struct RowTemplate {
    environment: Environment<'static>,
    /// True if it has generation blocks.
    marks: bool,
}

impl RowTemplate {
    fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = row_environment();
        let marks = generation::add(&mut environment, NAME, source)?;
        Ok(Self { environment, marks })
    }

    /// True if it reads the column.
    fn reads(&self, column: &str) -> bool {
        self.reads_variable(column) || self.reads_variable(&format!("data_point.{column}"))
    }

    fn reads_variable(&self, name: &str) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.undeclared_variables(true).contains(name))
    }

    /// True if it has the column's name in single braces, as Python's `format` takes it.
    pub(crate) fn spells(&self, column: &str) -> bool {
        let template = self.environment.get_template(NAME);
        let Ok(source) = template.as_ref().map(minijinja::Template::source) else {
            return false;
        };
        let written = format!("{{{column}}}");
        source.match_indices(&written).any(|(start, _)| {
            let (before, after) = (&source[..start], &source[start + written.len()..]);
            !before.ends_with('{') && !after.starts_with('}')
        })
    }

    /// Byte ranges of `text`, its rendering of the row, that are in generation blocks.
    pub(crate) fn target_spans(
        &self,
        row: &Row,
        switched: Option<(Switch, bool)>,
        text: &str,
    ) -> Result<Vec<Range<usize>>, TemplateError> {
        generation::spans(&self.render_named(MARKED, row, switched)?, text)
    }

    fn render(&self, row: &Row, switched: Option<(Switch, bool)>) -> Result<String, TemplateError> {
        self.render_named(NAME, row, switched)
    }

    fn render_named(
        &self,
        name: &str,
        row: &Row,
        switched: Option<(Switch, bool)>,
    ) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(name)
            .map_err(|error| syntax_error(&error))?;
        let columns = row.columns.clone();
        let switched = switched.map(|(switch, is_on)| (switch.name(), is_on));
        let switched = Value::from(BTreeMap::from_iter(switched));
        let named = context! { ..switched, ..columns.clone() };
        let context = context! { data_point => columns, ..named };
        jinja::render(&template, context).map_err(|error| unknown_column(error, row))
    }
}

/// The error for an undefined value that is a column: `a`, `data_point.a` or `data_point['a']`.
fn unknown_column(error: TemplateError, row: &Row) -> TemplateError {
    match undefined_column(&error) {
        Some(column) => TemplateError::UnknownColumn {
            column: column.to_owned(),
            available: row.names(),
        },
        None => error,
    }
}

/// The column that the engine's message calls undefined; `None` for a part of a column.
fn undefined_column(error: &TemplateError) -> Option<&str> {
    let TemplateError::Render(reason) = error else {
        return None;
    };
    let reason = reason.strip_prefix("undefined value: `")?;
    let (name, _) = reason.split_once("` is undefined")?;
    if let Some(quoted) = name.strip_prefix("data_point['") {
        let column = quoted.strip_suffix("']")?;
        return (!column.contains('\'')).then_some(column);
    }
    let column = name.strip_prefix("data_point.").unwrap_or(name);
    (!column.contains(['.', '['])).then_some(column)
}
