package auth

import (
	"fmt"
	"slices"

	"github.com/coordsvc/coordsvc/keytype"
)

// A Scope allows one group of routes.
type Scope string

// The scopes.
const (
	SessionsCreate   Scope = "sessions:create"
	SessionsData     Scope = "sessions:data"
	SessionsVerify   Scope = "sessions:verify"
	SessionsRevoke   Scope = "sessions:revoke"
	SessionsRead     Scope = "sessions:read"
	SessionsExplain  Scope = "sessions:explain"
	UsersRevoke      Scope = "users:revoke"
	UsersPermissions Scope = "users:permissions"
	UsersDisable     Scope = "users:disable"
	RatelimitCheck   Scope = "ratelimit:check"
	RatelimitAdmin   Scope = "ratelimit:admin"
	LeasesUse        Scope = "leases:use"
	LeasesRead       Scope = "leases:read"
	LeasesForce      Scope = "leases:force"
	FencingWrite     Scope = "fencing:write"
	AuditRead        Scope = "audit:read"
	FencingRead      Scope = "fencing:read"
	QuotasUse        Scope = "quotas:use"
	IdempotencyUse   Scope = "idempotency:use"
	LocksUse         Scope = "locks:use"
	QuotasAdmin      Scope = "quotas:admin"
	KeysAdmin        Scope = "keys:admin"
)

// everyScope stands, in a stored record alone, for whatever scopes the running
// version has: an operator's first key keeps up with upgrades. Nobody can ask for it.
const everyScope Scope = "*"

var scopes = []Scope{
	AuditRead, FencingRead, FencingWrite, IdempotencyUse, KeysAdmin, LeasesForce, LeasesRead, LeasesUse, LocksUse, QuotasAdmin, QuotasUse, RatelimitAdmin, RatelimitCheck,
	SessionsCreate, SessionsData, SessionsExplain, SessionsRead, SessionsRevoke, SessionsVerify,
	UsersDisable, UsersPermissions, UsersRevoke,
}

// AllScopes returns every scope, sorted.
func AllScopes() []Scope { return slices.Clone(scopes) }

// checkScopes returns the scopes sorted, or a [*keytype.ValueError] where they
// are not one or more different ones that exist.
func checkScopes(asked []Scope) ([]Scope, error) {
	if len(asked) == 0 {
		return nil, &keytype.ValueError{Field: "scopes", Reason: "must name at least one scope"}
	}
	sorted := slices.Sorted(slices.Values(asked))
	for i, s := range sorted {
		if !slices.Contains(scopes, s) {
			return nil, &keytype.ValueError{Field: "scopes", Reason: fmt.Sprintf("has no scope called %q", s)}
		}
		if i > 0 && sorted[i-1] == s {
			return nil, &keytype.ValueError{Field: "scopes", Reason: fmt.Sprintf("names %q twice", s)}
		}
	}
	return sorted, nil
}

// granted spells out everyScope.
func granted(stored []Scope) []Scope {
	if slices.Contains(stored, everyScope) {
		return AllScopes()
	}
	return slices.Clone(stored)
}
