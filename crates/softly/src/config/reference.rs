//! The reference of all configuration keys, made from the code: a JSON Schema for editors and a page for the book.

use std::fmt::Write;

use schemars::{Schema, schema_for};
use serde_json::{Map, Value};

use crate::config::Config;

/// The JSON Schema of configuration files, as text.
pub fn schema_text() -> String {
    let schema: Schema = schema_for!(Config);
    serde_json::to_string_pretty(&schema).expect("a schema is valid JSON")
}

/// The page of the book with every key, its type, its default and what it means.
pub fn reference_page() -> String {
    let schema = schema_for!(Config).to_value();
    let page = Page { definitions: schema["$defs"].as_object().cloned().unwrap_or_default() };
    let mut text = String::from(
        "<!-- Made by the program from its code: do not edit. -->\n\
         # Configuration keys\n\n\
         Every key of a configuration file, for looking up. `softly presets NAME` prints a preset with all keys resolved, and\n\
         `softly presets --schema` prints the same reference as a JSON Schema, with which editors complete and check files.\n\
         A key in a table `[a.b]` called `c` is `a.b.c` for `--set a.b.c=value`.\n",
    );
    page.table(&mut text, "", &schema);
    text + "\nTo try: `softly presets --schema`\n"
}

/// The definitions that a schema refers to.
struct Page {
    definitions: Map<String, Value>,
}

impl Page {
    /// The schema behind references.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let name = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next());
        match name {
            Some(name) => self.resolve(&self.definitions[name]),
            None => schema,
        }
    }

    /// The parts of a schema that is one of several; nothing stands for an absent value.
    fn variants<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let resolved = self.resolve(schema);
        let several = resolved["anyOf"].as_array().or(resolved["oneOf"].as_array());
        several.map_or_else(|| vec![resolved], |all| all.iter().filter(|v| v["type"] != "null").collect())
    }

    /// A table of keys, then the tables below it.
    fn table(&self, text: &mut String, path: &str, schema: &Value) {
        let Some(properties) = schema["properties"].as_object() else { return };
        let heading = if path.is_empty() { "The file".into() } else { format!("`[{path}]`") };
        write!(text, "\n## {heading}\n\n").expect("text grows");
        if let Some(meaning) = schema["description"].as_str() {
            write!(text, "{}\n\n", one_line(meaning)).expect("text grows");
        }
        *text += "| key | value | default | meaning |\n|---|---|---|---|\n";
        for (key, property) in properties {
            let default = property.get("default").map_or_else(String::new, |d| format!("`{d}`"));
            let default = if default.len() > 60 { "see below".into() } else { default };
            let meaning = property["description"].as_str().or(self.resolve(property)["description"].as_str());
            let kind = self.kind(property);
            let meaning = one_line(meaning.unwrap_or_default());
            writeln!(text, "| `{key}` | {kind} | {default} | {meaning} |").expect("text grows");
        }
        for (key, property) in properties {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.below(text, &path, property);
        }
    }

    /// The tables that a value may be.
    fn below(&self, text: &mut String, path: &str, property: &Value) {
        let variants = self.variants(property);
        let tables: Vec<&Value> = variants.iter().map(|v| self.resolve(v)).collect();
        let tagged = tables.iter().any(|v| tag(v).is_some());
        for table in tables {
            match tag(table) {
                None if !tagged => self.table(text, path, table),
                None => {}
                Some((key, name)) => {
                    // A tagged table keeps its settings beside its tag.
                    let inner = if table.get("$ref").is_some() { self.resolve(table) } else { table };
                    let mut merged = inner.clone();
                    if let Some(target) = table["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
                        merge_properties(&mut merged, &self.definitions[target]);
                    }
                    if let Some(properties) = merged["properties"].as_object_mut() {
                        properties.remove(key);
                    }
                    self.table(text, &format!("{path}] with {key} = \"{name}\" [{path}"), &merged);
                }
            }
        }
    }

    /// A value's type in words.
    fn kind(&self, property: &Value) -> String {
        let words: Vec<String> = self.variants(property).into_iter().map(|v| self.word(v)).collect();
        let mut seen: Vec<String> = Vec::new();
        for word in words {
            if !seen.contains(&word) {
                seen.push(word);
            }
        }
        seen.join(" or ")
    }

    fn word(&self, variant: &Value) -> String {
        let variant = self.resolve(variant);
        if let Some((_, name)) = tag(variant) {
            return format!("table `{name}`");
        }
        if let Some(text) = variant["const"].as_str() {
            return format!("`\"{text}\"`");
        }
        if let Some(words) = variant["enum"].as_array() {
            return words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
        }
        if variant.get("anyOf").is_some() || variant.get("oneOf").is_some() {
            return self.kind(variant);
        }
        let kind = |name: &str| match name {
            "integer" => "whole number",
            "number" => "number",
            "boolean" => "true or false",
            "string" => "text",
            "array" => "list",
            _ => "table",
        };
        match &variant["type"] {
            Value::String(name) => kind(name).into(),
            Value::Array(names) => {
                let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
                names.map(kind).collect::<Vec<_>>().join(" or ")
            }
            _ => "any value".into(),
        }
    }
}

/// The key and value of the tag that says which table a variant is.
fn tag(variant: &Value) -> Option<(&'static str, &str)> {
    ["kind", "shape"].into_iter().find_map(|key| Some((key, variant["properties"][key]["const"].as_str()?)))
}

/// Takes over the properties of `other`.
fn merge_properties(schema: &mut Value, other: &Value) {
    if let (Some(own), Some(others)) = (schema["properties"].as_object_mut(), other["properties"].as_object()) {
        others.iter().for_each(|(key, value)| {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        });
    }
}

/// Text for a cell of a Markdown table.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SOFTLY_BLESS=1 cargo test reference` writes the page anew.
    #[test]
    fn the_page_in_the_book_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/configuration-keys.md");
        let page = reference_page();
        if std::env::var_os("SOFTLY_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == page, "book/src/configuration-keys.md is stale: run with SOFTLY_BLESS=1 to write it anew");
    }

    #[test]
    fn the_schema_knows_every_key_that_presets_use() {
        let schema: Value = serde_json::from_str(&schema_text()).unwrap();
        let page = Page { definitions: schema["$defs"].as_object().unwrap().clone() };
        let mut missing = Vec::new();
        for (name, text) in crate::config::presets::PRESETS {
            let table: toml::Table = toml::from_str(text).unwrap();
            let value = serde_json::to_value(&table).unwrap();
            unknown_keys(&page, &schema, &value, name, &mut missing);
        }
        assert!(missing.is_empty(), "{missing:?}");
        let page = reference_page();
        for key in ["`iterations`", "`solve_for`", "`generator`", "`multipliers`", "`scale`", "`learn`", "`sigma_min`"]
        {
            assert!(page.contains(key), "{key} is missing");
        }
    }

    fn unknown_keys(page: &Page, schema: &Value, value: &Value, path: &str, missing: &mut Vec<String>) {
        let Some(table) = value.as_object() else { return };
        let variants: Vec<&Value> = page.variants(schema).into_iter().map(|v| page.resolve(v)).collect();
        for (key, inner) in table {
            let path = format!("{path}.{key}");
            if path.ends_with(".methods") {
                continue;
            }
            let places: Vec<Value> = variants
                .iter()
                .filter_map(|v| {
                    let own = v["properties"].get(key).or(v.get("additionalProperties").filter(|a| a.is_object()));
                    let referred = v["$ref"].as_str().and_then(|r| r.rsplit('/').next());
                    own.or_else(|| page.definitions.get(referred?)?["properties"].get(key)).cloned()
                })
                .collect();
            if places.is_empty() {
                missing.push(path);
            } else {
                let any = serde_json::json!({ "anyOf": places });
                unknown_keys(page, &any, inner, &path, missing);
            }
        }
    }
}
