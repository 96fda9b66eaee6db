//! The code that the attributes expand to.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, Expr, FnArg, GenericParam, ImplItem, ItemFn, ItemImpl, Lit, Meta, Pat,
    Result, ReturnType, Signature, Type, spanned::Spanned as _,
};

use crate::options::{CratePath, Options, check_name};

/// `#[tool]` on a function.
pub(crate) fn function(options: &Options, mut function: ItemFn) -> Result<TokenStream> {
    if let Some(FnArg::Receiver(receiver)) = function.sig.inputs.first() {
        let why = "a method becomes a tool with #[mynah::tools] on its impl block";
        return Err(Error::new_spanned(receiver, why));
    }
    let name = function.sig.ident.clone();
    let parts = Parts::take(options, &function.attrs, &mut function.sig)?;
    let tool = parts.tool(&quote!(#name::call));
    let krate = &options.crate_path.0;
    let (docs, conditions) = (of_kind(&function.attrs, "doc"), of_kind(&function.attrs, "cfg"));
    let vis = &function.vis;
    function.sig.ident = Ident::new("call", name.span());
    Ok(quote! {
        #(#docs)*
        #(#conditions)*
        #vis fn #name() -> #krate::Tool {
            #tool
        }

        #(#docs)*
        #(#conditions)*
        #[allow(non_camel_case_types)]
        #[derive(Debug)]
        #vis enum #name {}

        #(#conditions)*
        impl #name {
            #function
        }
    })
}

/// `#[tools]` on an impl block.
pub(crate) fn methods(krate: &CratePath, mut block: ItemImpl) -> Result<TokenStream> {
    if let Some((path, _)) = &block.trait_ {
        let why = "#[mynah::tools] is for the methods of a type, not of a trait";
        return Err(Error::new_spanned(path, why));
    }
    let (mut tools, mut errors) = (Vec::new(), None::<Error>);
    for item in &mut block.items {
        let method = match item {
            ImplItem::Fn(method) => method,
            // What is no item of an impl block, as a method without a body.
            ImplItem::Verbatim(tokens) => {
                let why = "expected a method with a body, a constant or a type";
                return Err(Error::new_spanned(tokens, why));
            }
            _ => continue,
        };
        let is_tool = |attr: &Attribute| {
            attr.path().segments.last().is_some_and(|segment| segment.ident == "tool")
        };
        let Some(place) = method.attrs.iter().position(is_tool) else { continue };
        let mut tool = || {
            let mut options = match &method.attrs.remove(place).meta {
                Meta::Path(_) => Options::default(),
                meta => syn::parse2(meta.require_list()?.tokens.clone())?,
            };
            options.crate_path = krate.clone();
            let parts = Parts::take(&options, &method.attrs, &mut method.sig)?;
            let name = &method.sig.ident;
            let conditions = of_kind(&method.attrs, "cfg");
            let tool = parts.tool(&quote!(Self::#name));
            let this =
                parts.takes_self.then(|| quote!(let __this = ::std::sync::Arc::clone(&self);));
            Ok(quote!(#(#conditions)* __tools.push({ #this #tool });))
        };
        match tool() {
            Ok(tool) => tools.push(tool),
            Err(error) => match &mut errors {
                Some(errors) => errors.combine(error),
                None => errors = Some(error),
            },
        }
    }
    if let Some(errors) = errors {
        return Err(errors);
    }
    if tools.is_empty() {
        let why = "no method of this impl block has #[tool]";
        return Err(Error::new_spanned(&block.self_ty, why));
    }
    let krate = &krate.0;
    let (this, (generics, _, condition)) = (&block.self_ty, block.generics.split_for_impl());
    Ok(quote! {
        #block

        impl #generics #krate::ToolSet for #this #condition {
            fn tools(self: ::std::sync::Arc<Self>) -> ::std::vec::Vec<#krate::Tool> {
                let mut __tools = ::std::vec::Vec::new();
                #(#tools)*
                __tools
            }
        }
    })
}

/// What a tool is made of.
struct Parts<'a> {
    options: &'a Options,
    name: String,
    description: String,
    takes_self: bool,
    takes_context: bool,
    is_async: bool,
    /// The fields of its arguments.
    fields: Vec<TokenStream>,
    /// What the function is called with.
    values: Vec<TokenStream>,
    returned: ReturnType,
}

impl<'a> Parts<'a> {
    /// Reads a signature, and takes the attributes of its parameters away, which only this macro understands.
    fn take(options: &'a Options, attrs: &[Attribute], sig: &mut Signature) -> Result<Self> {
        let typed = |param: &&GenericParam| !matches!(param, GenericParam::Lifetime(_));
        if let Some(param) = sig.generics.params.iter().find(typed) {
            return Err(Error::new_spanned(param, "a tool cannot have type parameters"));
        }
        let name = match &options.name {
            Some(name) => name.value(),
            None => {
                let name = syn::ext::IdentExt::unraw(&sig.ident).to_string();
                check_name(&name, sig.ident.span())?;
                name
            }
        };
        let mut parts = Self {
            options,
            name,
            description: description(attrs),
            takes_self: false,
            takes_context: false,
            is_async: sig.asyncness.is_some(),
            fields: Vec::new(),
            values: Vec::new(),
            returned: sig.output.clone(),
        };
        let mut errors = None::<Error>;
        for input in &mut sig.inputs {
            if let Err(error) = parts.parameter(input) {
                match &mut errors {
                    Some(errors) => errors.combine(error),
                    None => errors = Some(error),
                }
            }
        }
        errors.map_or(Ok(parts), Err)
    }

    fn parameter(&mut self, input: &mut FnArg) -> Result<()> {
        let param = match input {
            FnArg::Receiver(receiver) => {
                if !matches!(receiver.kind, syn::ReceiverKind::Reference(_, _, None)) {
                    let why = "a tool takes `&self`: its calls share one value";
                    return Err(Error::new_spanned(receiver, why));
                }
                self.takes_self = true;
                self.values.push(quote!(&__this));
                return Ok(());
            }
            FnArg::Typed(param) => param,
        };
        let attrs = std::mem::take(&mut param.attrs);
        if let Some(value) = context(&param.ty) {
            if std::mem::replace(&mut self.takes_context, true) {
                let why = "a tool has one context: remove the second `ToolContext`";
                return Err(Error::new_spanned(param, why));
            }
            self.values.push(value);
            return Ok(());
        }
        let Pat::Ident(pattern) = &*param.pat else {
            let why = "a tool's parameter needs a name, which the model reads, as `city: String`";
            return Err(Error::new_spanned(&param.pat, why));
        };
        if let Type::Reference(reference) = &*param.ty {
            let why = "a tool's parameter owns its value, as `String` or `Vec<T>`; only `&ToolContext` is borrowed";
            return Err(Error::new_spanned(reference, why));
        }
        let known = |attr: &&Attribute| {
            ["doc", "serde", "schemars"].iter().any(|name| attr.path().is_ident(name))
        };
        if let Some(attr) = attrs.iter().find(|attr| !known(attr)) {
            let why = "a tool's parameter takes doc comments, #[serde(…)] and #[schemars(…)]";
            return Err(Error::new_spanned(attr, why));
        }
        let (name, ty) = (&pattern.ident, &param.ty);
        self.fields.push(quote!(#(#attrs)* #name: #ty));
        self.values.push(quote!(__arguments.#name));
        Ok(())
    }

    /// The expression that makes the tool, whose calls call this.
    fn tool(&self, function: &TokenStream) -> TokenStream {
        let Self { options, name, description, fields, values, .. } = self;
        let krate = &options.crate_path.0;
        let path = krate.to_token_stream().to_string().replace(' ', "");
        let (serde, schemars) =
            (format!("{path}::__private::serde"), format!("{path}::__private::schemars"));
        let arguments = format_ident!("__{}Arguments", name.replace('-', "_"));
        let setters = options.setters();
        // An error about the returned type belongs to where it stands.
        let span = match &self.returned {
            ReturnType::Type(_, ty) => ty.span(),
            ReturnType::Default => proc_macro2::Span::call_site(),
        };
        let called = match self.is_async {
            true => quote!(#function(#(#values),*).await),
            false => quote!(#function(#(#values),*)),
        };
        let outcome = quote_spanned! {span=> {
            #[allow(unused_imports)]
            use #krate::__private::{AsAny as _, AsFallible as _};
            let __marker = (&#krate::__private::Returned::of(&__returned)).marker();
            #krate::__private::outcome(__returned, __marker)
        }};
        let body = quote!({
            #[allow(clippy::let_unit_value)]
            let __returned = #called;
            #outcome
        });
        let made = match (self.is_async, self.takes_self) {
            (true, true) => quote! {
                #krate::__private::tool(#name, #description, move |__arguments: #arguments, __context: #krate::ToolContext| {
                    let __this = ::std::sync::Arc::clone(&__this);
                    async move #body
                })
            },
            (true, false) => quote! {
                #krate::__private::tool(#name, #description, |__arguments: #arguments, __context: #krate::ToolContext| async move #body)
            },
            (false, _) => quote! {
                #krate::Tool::typed_blocking(#name, #description, move |__arguments: #arguments, __context: #krate::ToolContext| #body)
            },
        };
        quote! {
            #[allow(non_camel_case_types)]
            #[derive(#krate::__private::serde::Deserialize, #krate::__private::schemars::JsonSchema)]
            #[serde(crate = #serde)]
            #[schemars(crate = #schemars)]
            struct #arguments {
                #(#fields,)*
            }
            #[allow(unused_variables)]
            let __tool = #made;
            __tool #setters
        }
    }
}

/// The context, if a parameter of this type gets it.
fn context(ty: &Type) -> Option<TokenStream> {
    match ty {
        Type::Reference(reference) if reference.mutability.is_none() => {
            context(&reference.elem).map(|_| quote!(&__context))
        }
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            (last.ident == "ToolContext").then(|| quote!(__context.clone()))
        }
        _ => None,
    }
}

fn of_kind<'a>(attrs: &'a [Attribute], kind: &str) -> Vec<&'a Attribute> {
    attrs.iter().filter(|attr| attr.path().is_ident(kind)).collect()
}

/// The text of doc comments.
fn description(attrs: &[Attribute]) -> String {
    let mut text = String::new();
    for attr in of_kind(attrs, "doc") {
        if let Meta::NameValue(doc) = &attr.meta
            && let Expr::Lit(literal) = &doc.value
            && let Lit::Str(line) = &literal.lit
        {
            let line = line.value();
            text.push_str(line.strip_prefix(' ').unwrap_or(&line).trim_end());
            text.push('\n');
        }
    }
    text.trim().to_owned()
}
