//! The scripts, each behind what its kind has in front. Each declares all keys that it touches, and all of those are in one slot.

use redis::Script;

macro_rules! scripts {
    ($($front:literal { $($(#[$doc:meta])* $name:ident;)* })*) => {
        /// All scripts, ready to be called by their digest.
        pub(super) struct Scripts {
            $($($(#[$doc])* pub(super) $name: Script,)*)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($($name: Script::new(concat!(
                    include_str!(concat!("scripts/", $front, ".lua")),
                    include_str!(concat!("scripts/", stringify!($name), ".lua"))
                )),)*)* }
            }

            /// Each of them, to be loaded when a connection is made.
            pub(super) fn all(&self) -> Vec<&Script> {
                vec![$($(&self.$name,)*)*]
            }

            /// What they say.
            #[cfg(test)]
            pub(super) fn texts() -> Vec<&'static str> {
                vec![$(
                    include_str!(concat!("scripts/", $front, ".lua")),
                    $(include_str!(concat!("scripts/", stringify!($name), ".lua")),)*
                )*]
            }
        }
    };
}

scripts! {
    "epoch" {
        /// Looks an entry up, or takes the lease.
        look;
        /// Reads what a record is decided on.
        prepare;
        /// Writes what was decided.
        commit;
        /// Removes entries.
        drop;
        /// Removes strikes.
        drop_strikes;
        /// Forgets one key.
        forget_key;
        /// Notes a forget of many.
        forget;
        /// Takes note of an acceptance.
        accept;
        /// Marks entries.
        suspect;
        /// Counts replays.
        count;
        /// Prolongs leases.
        renew;
        /// Gives a lease up.
        release;
    }
    "work" {
        /// Keeps an operation.
        op_put;
        /// Names operations that are due.
        op_due;
        /// Counts a look at an operation.
        op_looked;
        /// Nothing of an operation is pending any more.
        op_settle;
        /// Removes an operation.
        op_remove;
        /// Takes a job in.
        job_submit;
        /// Hands the next job out.
        job_next;
        /// Takes out of a stream what stands for no job.
        job_skip;
        /// Writes a job anew.
        job_commit;
        /// Prolongs a claim.
        job_renew;
        /// Counts jobs.
        job_depth;
        /// Removes a job whose end has come.
        job_drop;
        /// Counts jobs no more whose end has come.
        job_uncount;
        /// Names ends that are to be told.
        end_due;
        /// Hands one of them out.
        end_take;
        /// Says what became of it.
        end_told;
    }
}
