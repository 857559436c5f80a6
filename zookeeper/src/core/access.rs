//! Access control: which lists may be set, and who may do what.

use super::digest;
use crate::protocol::code::ErrorCode;
use crate::protocol::types::{Acl, AclList, Identity, permission};

/// `world:anyone` with all permissions.
pub(crate) fn open_to_all() -> AclList {
    let identity = Identity { scheme: "world".to_owned(), id: "anyone".to_owned() };
    [Acl { permissions: permission::ALL, identity }].into()
}

/// The identity that an `auth` request proves, or `None` when it proves nothing.
pub(crate) fn authenticate(scheme: &str, credential: &[u8], address: &Identity) -> Option<Identity> {
    match scheme {
        "digest" => {
            let id = digest::identity_of(std::str::from_utf8(credential).ok()?);
            Some(Identity { scheme: scheme.to_owned(), id })
        }
        "ip" => Some(address.clone()),
        _ => None,
    }
}

/// The list to store for a list as requested: `auth` entries become the caller's identities,
/// duplicates go. Errors: [`ErrorCode::InvalidAcl`] for an empty list, an unknown scheme, an id
/// that the scheme does not allow, or `auth` from a caller who proved nothing.
pub(crate) fn resolve(requested: &[Acl], caller: &[Identity]) -> Result<AclList, ErrorCode> {
    let mut resolved: Vec<Acl> = Vec::new();
    let mut add = |permissions: i32, identity: &Identity| {
        let acl = Acl { permissions, identity: identity.clone() };
        if !resolved.contains(&acl) {
            resolved.push(acl);
        }
    };
    for Acl { permissions, identity } in requested {
        if identity.scheme == "auth" {
            let mut proven = caller.iter().filter(|identity| identity.scheme != "ip").peekable();
            proven.peek().ok_or(ErrorCode::InvalidAcl)?;
            proven.for_each(|identity| add(*permissions, identity));
        } else if is_valid(identity) {
            add(*permissions, identity);
        } else {
            return Err(ErrorCode::InvalidAcl);
        }
    }
    if resolved.is_empty() {
        return Err(ErrorCode::InvalidAcl);
    }
    Ok(resolved.into())
}

fn is_valid(identity: &Identity) -> bool {
    match identity.scheme.as_str() {
        "world" => identity.id == "anyone",
        "digest" => identity.id.split(':').count() == 2,
        "ip" => Network::parse(&identity.id).is_some(),
        _ => false,
    }
}

/// Whether one of the caller's identities has one of the wanted permissions.
pub(crate) fn check(acls: &[Acl], wanted: i32, caller: &[Identity]) -> Result<(), ErrorCode> {
    if acls.is_empty() || acls.iter().any(|acl| acl.permissions & wanted != 0 && matches(acl, caller)) {
        Ok(())
    } else {
        Err(ErrorCode::NoAuth)
    }
}

fn matches(acl: &Acl, caller: &[Identity]) -> bool {
    let granted = &acl.identity;
    match granted.scheme.as_str() {
        "world" => granted.id == "anyone",
        "ip" => Network::parse(&granted.id).is_some_and(|network| {
            caller.iter().any(|identity| identity.scheme == "ip" && network.contains(&identity.id))
        }),
        _ => caller.contains(granted),
    }
}

/// Hides the hashes of a list from callers who may read but not administer the node.
pub(crate) fn without_secrets(acls: &[Acl]) -> Vec<Acl> {
    acls.iter()
        .cloned()
        .map(|mut acl| {
            if acl.identity.scheme == "digest" {
                let user = acl.identity.id.split(':').next().unwrap_or_default();
                acl.identity.id = format!("{user}:x");
            }
            acl
        })
        .collect()
}

/// The identities without their proofs.
pub(crate) fn names_of(identities: &[Identity]) -> Vec<Identity> {
    let name_of = |identity: &Identity| match identity.scheme.as_str() {
        "digest" => identity.id.split(':').next().unwrap_or_default().to_owned(),
        _ => identity.id.clone(),
    };
    identities
        .iter()
        .map(|identity| Identity { scheme: identity.scheme.clone(), id: name_of(identity) })
        .collect()
}

/// `address` or `address/bits`.
struct Network {
    address: u32,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, bits.parse().ok().filter(|bits| *bits <= 32)?),
            None => (text, 32),
        };
        Some(Self { address: address_bits(address)?, bits })
    }

    fn contains(&self, address: &str) -> bool {
        let Some(address) = address_bits(address) else { return false };
        let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
        address & mask == self.address & mask
    }
}

/// The four octets of an IPv4 address.
fn address_bits(address: &str) -> Option<u32> {
    let octets: Vec<u8> = address.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    octets.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(scheme: &str, id: &str) -> Identity {
        Identity { scheme: scheme.to_owned(), id: id.to_owned() }
    }

    fn acl(permissions: i32, scheme: &str, id: &str) -> Acl {
        Acl { permissions, identity: identity(scheme, id) }
    }

    #[test]
    fn lists_that_may_be_set() {
        let anonymous = [identity("ip", "127.0.0.1")];
        let known = [identity("ip", "127.0.0.1"), identity("digest", "u:h")];
        let refused = Err(ErrorCode::InvalidAcl);
        assert_eq!(resolve(&[], &known), refused);
        assert_eq!(resolve(&[acl(31, "auth", "")], &anonymous), refused);
        assert_eq!(resolve(&[acl(31, "world", "me")], &known), refused);
        assert_eq!(resolve(&[acl(31, "digest", "nocolon")], &known), refused);
        assert_eq!(resolve(&[acl(31, "nonsense", "x")], &known), refused);
        let twice = [acl(31, "auth", ""), acl(31, "digest", "u:h")];
        assert_eq!(resolve(&twice, &known).unwrap().to_vec(), [acl(31, "digest", "u:h")]);
    }

    #[test]
    fn who_may() {
        let caller = [identity("ip", "10.1.2.3"), identity("digest", "u:h")];
        for (granted, wanted, allowed) in [
            (acl(permission::READ, "world", "anyone"), permission::READ, true),
            (acl(permission::READ, "world", "anyone"), permission::WRITE, false),
            (acl(permission::ALL, "digest", "u:h"), permission::WRITE, true),
            (acl(permission::ALL, "digest", "u:other"), permission::WRITE, false),
            (acl(permission::ALL, "ip", "10.1.0.0/16"), permission::WRITE, true),
            (acl(permission::ALL, "ip", "10.2.0.0/16"), permission::WRITE, false),
            (acl(permission::ALL, "ip", "0.0.0.0/0"), permission::WRITE, true),
        ] {
            assert_eq!(
                check(std::slice::from_ref(&granted), wanted, &caller).is_ok(),
                allowed,
                "{granted:?}"
            );
        }
    }
}
