//! From the records of a run to a driver that continues it.

use std::sync::Arc;

use mynah_data::{Error, LogReason, Result, RunId};
use mynah_log::{About, Fact, Head, Queue};
use mynah_step::{Recorder, World, active, is_fresh_branch, take_over};
use serde_json::Value;

use super::{Claimed, Resume, TurnCall, fit::Fitting};
use crate::{
    cancel::HAS_MOVED,
    code::{SCHEMA_FIT, code_of},
    linked::continued,
    loaded::Loaded,
    mailbox::Mailbox,
    options::Options,
    prepare::{CallOrigin, CallPlan, Part, joined},
    run::{Driver, Resumption},
    worker::queue_of,
};

impl Resume {
    pub(super) async fn begin(self) -> Result<Driver> {
        let mut this = self;
        let loaded = Loaded::read(&*this.log, &this.run).await?;
        let loaded = continued(&this.log, &this.engine, loaded, &this.options).await?;
        this.run.clone_from(&loaded.run);
        if this.takes_inbox {
            this = this.take_messages(&loaded).await?;
        }
        match this.prepare(loaded).await {
            // The last records of a run that was released a moment ago came since it was read.
            Err(error) if error.kind() == HAS_MOVED && this.may_read_again() => {
                this.prepare(Loaded::read(&*this.log, &this.run).await?).await
            }
            prepared => prepared,
        }
    }

    /// A run that continues, with its lease.
    pub(crate) async fn prepare(&mut self, mut loaded: Loaded) -> Result<Driver> {
        let world = Arc::clone(&self.engine.0.world);
        // Whether the process that runs the call has died is only known to who can take its run.
        if self.claimed.is_none() && self.repeated(&loaded).is_some() {
            take_over(&self.log, world.as_ref(), &loaded.run, loaded.chain.head()).await?;
        }
        let Fitting { message, fact, part, changed } = self.fit(&loaded)?;
        let mut setup = part.setup;
        if let Some(id) = loaded.request_id() {
            setup.set_request_id(&id);
        }
        let (run, head) = (loaded.run.clone(), loaded.chain.head());
        let queue = self.queue_of(&loaded).await?;
        let Claimed { lease, consumed, mailbox } = match self.claimed.take() {
            Some(claimed) if self.log.head(&run).await? == head => claimed,
            Some(_) => return Err(Error::log(LogReason::HeadMismatch)),
            None => self.claim(world.as_ref(), &run, head, queue.is_some()).await?,
        };
        // A run whose end is recorded lacks nothing but its seal.
        let ended = loaded.has_ended();
        let refusal = if ended { loaded.refusal() } else { None };
        let fact = (!ended).then(|| {
            let mut fact = fact.unwrap_or(Fact::SEAM);
            if let Fact::Resumed { about, on_uncertain, after, .. } = &mut fact {
                (*about, *on_uncertain) = (changed, self.on_uncertain);
                *after = lease.interruption(is_fresh_branch(&loaded.records));
            }
            Box::new(fact)
        });
        let active = active(&loaded.records);
        let (before, state) = (loaded.before.len(), loaded.take_state());
        let Loaded { chain, totals, .. } = loaded;
        let mut recorder = Recorder::after(Arc::clone(&self.log), world, chain, totals)
            .with_durability(self.options.durability)
            .with_emit_timeout(self.options.log_timeout(&self.engine.0.options))
            .metered(self.engine.0.metrics.clone())
            .with_lease(lease)
            .with_queue(queue);
        consumed.into_iter().for_each(|message| recorder.consume(message));
        if ended {
            recorder.seal()?;
        }
        let mailbox = mailbox.map(Mailbox::reader);
        let resumption = Resumption { fact, message, active, mailbox, woken: self.woken };
        let cancel = self.options.cancel_handle.as_ref();
        let driver = Driver::resume(setup, (before, state), resumption, refusal, cancel, recorder);
        Ok(driver)
    }

    /// The queue of a run that has none: that of the run which it continues, or the one that was asked for.
    async fn queue_of(&self, loaded: &Loaded) -> Result<Option<Queue>> {
        if let Some(link) = loaded.link()
            && let Some(queue) = self.log.run(&link.root).await?.and_then(|run| run.queue)
        {
            return Ok(Some((*queue).clone()));
        }
        let agent = loaded.about.options.get("agent").and_then(Value::as_str);
        let Some((mut queue, agent)) = self.options.queue.clone().zip(agent) else {
            return Ok(None);
        };
        queue.name = queue_of(&queue.name, agent);
        Ok(Some(queue))
    }

    /// Takes the run as a worker does that claims it.
    async fn claim(
        &mut self,
        world: &dyn World,
        run: &RunId,
        head: Option<Head>,
        gets_queue: bool,
    ) -> Result<Claimed> {
        let indexed = self.log.run(run).await?;
        let lease = take_over(&self.log, world, run, head).await?;
        let mut consumed = self.consumed.clone();
        if let Some(id) = self.message_id.take() {
            // What it says is not in it, so nothing else can take it as it was meant.
            self.log.deliver(run, &id, b"null".to_vec()).await?;
            consumed.push(id);
        }
        // Runs that no worker may continue get no messages.
        let has_queue = gets_queue || indexed.is_some_and(|run| run.queue.is_some());
        let mailbox = has_queue.then(|| {
            let mailbox =
                Mailbox::new(Arc::clone(&self.log), run.clone(), self.options.own_cancel());
            mailbox.pass_over(&consumed);
            mailbox
        });
        Ok(Claimed { lease, consumed, mailbox })
    }

    /// What this engine makes of what is left of the run, and what that runs with if it is something else than before.
    pub(super) fn part(&self, loaded: &Loaded) -> Result<(Part, Option<Box<About>>)> {
        let (_, last) = loaded.stretches();
        let mut recorded = last.about.clone();
        let mut options = Options::of(&recorded)?;
        if let Some(TurnCall { session, .. }) = &self.turn {
            if let Some(link) = &mut recorded.session {
                link.context.clone_from(&session.context);
                link.metadata.clone_from(&session.metadata);
            }
            // The budget belongs to the run, unless the call sets another.
            options.values.retain(|name| name == "budget");
        }
        let recorded = &recorded;
        let options = options.overlay(self.options.clone());
        let asked = |past| CallPlan {
            engine: &self.engine,
            conversation: joined(&loaded.before, &loaded.thread),
            given: None,
            options: options.clone(),
            extent: self.turn.as_ref().map_or(last.extent, |turn| turn.extent),
            past,
        };
        // A run that continues with the same engine keeps its price.
        let part = asked(CallOrigin::ReplayAtPrice(recorded)).prepare()?;
        if loaded.difference(part.about.as_deref()).is_none() {
            return Ok((part, None));
        }
        let unsaid = part.about.as_deref().map(|about| self.unsaid(about, recorded));
        if let Some(difference) = loaded.difference(unsaid.as_ref())
            && !self.options.allow_changed
        {
            let has = |name: &String| {
                part.about.as_ref().is_some_and(|about| about.options.contains_key(name))
            };
            let run = &loaded.run;
            let message = match code_of(recorded).keys().find(|name| !has(name)) {
                Some(name) => format!(
                    "replay mismatch: the run has code for {name}, which its records cannot hold; give it again, or \
                     allow_changed_engine() continues without it"
                ),
                None => {
                    let diff = difference.metadata().get("diff");
                    let path = diff.and_then(|diff| diff.pointer("/0/path")?.as_str());
                    format!(
                        "replay mismatch: run {run} ran with another engine: {} differs; \
                         allow_changed_engine() continues the run with this one",
                        path.unwrap_or("a record")
                    )
                }
            };
            return Err(difference.with_message(message));
        }
        let part = asked(CallOrigin::Again(recorded)).prepare()?;
        let about = part.about.clone();
        Ok((part, about))
    }

    /// The engine's configuration, without the options that this call sets explicitly. Schema rules
    /// of a newer version of the library do not make another engine.
    fn unsaid(&self, about: &About, recorded: &About) -> About {
        let is_said = |name: &String| self.options.says(name) || name == SCHEMA_FIT;
        let mut options = about.options.clone();
        options.retain(|name, _| !is_said(name));
        let said = recorded.options.iter().filter(|(name, _)| is_said(name));
        options.extend(said.map(|(name, value)| (name.clone(), value.clone())));
        let mut params = about.params.clone();
        params.retain(|name, _| name != "budget");
        params.extend(recorded.params.get_key_value("budget").map(|(n, v)| (n.clone(), v.clone())));
        About { options, params, finalizes: recorded.finalizes, ..about.clone() }
    }
}
