package audit

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coordsvc/coordsvc/keytype"
)

// Bounds of an event's texts, in bytes. Actor, subject and request id are ids.
const (
	MaxReason  = 512
	MaxOutcome = 64
)

// An Event says who did what to whom, why, and what came of it. No event holds a
// token or an API key's text: what looks like one is cut out before it is stored.
type Event struct {
	ID        ID      // made by Record
	Tenant    string  // whose event it is
	Actor     string  // who asked: the id of an API key, or a name for the service's own command line
	Action    Action  // what was done or tried
	User      string  // whose session or account it is; "" = nobody's, or not known
	Subject   string  // what it was done to, by the action a session handle, API key id or resource; "" = nothing named
	Reason    string  // why, in the actor's words, or what a denied key lacks; "" = not given
	RequestID string  // of the HTTP request; "" = none
	Outcome   Outcome // what came of it
	Repeats   int     // made by Record: how many events like this one were left out just before it
}

// At is when the event was recorded, in whole milliseconds, UTC.
func (e Event) At() time.Time { return e.ID.Time() }

// An Action is what an event tells of.
type Action string

// The actions, by what they are done to.
const (
	Create       Action = "create" // of a session, by its handle, as are the ones below
	Rotate       Action = "rotate"
	StepUp       Action = "step_up"
	Revoke       Action = "revoke"
	OldTokenUsed Action = "old_token_used" // after its grace

	LogoutAll       Action = "logout_all" // of a user, as are the ones below, without a subject
	PermissionEpoch Action = "permission_epoch"
	Disable         Action = "disable"
	Enable          Action = "enable"
	Erase           Action = "erase"

	TenantLogoutAll Action = "tenant_logout_all" // of everybody

	KeyCreate Action = "key_create" // of an API key
	KeyRevoke Action = "key_revoke"

	LeaseForce Action = "lease_force" // of a resource, whose holder was overruled
	FenceReset Action = "fence_reset"

	Denied Action = "denied" // an authenticated key lacks a scope: the reason names it, the subject is what the request named
)

func (a Action) known() bool {
	switch a {
	case Create, Rotate, StepUp, Revoke, OldTokenUsed, LogoutAll, PermissionEpoch, Disable, Enable, Erase,
		TenantLogoutAll, KeyCreate, KeyRevoke, LeaseForce, FenceReset, Denied:
		return true
	}
	return false
}

// An Outcome is OK, Unknown or the code of a refusal, as in the HTTP API.
type Outcome string

// The outcomes that are no refusals.
const (
	OK      Outcome = "ok"
	Unknown Outcome = "unknown" // the answer of the store never came: it may have happened
)

var outcome = regexp.MustCompile(`^[a-z][a-z_]*$`)

// CheckReason refuses, with a [*keytype.ValueError], what cannot be a reason:
// more than [MaxReason] bytes, invalid UTF-8, control characters. Check before
// the change: an event that is refused after it would be missing.
func CheckReason(reason string) error {
	switch {
	case len(reason) > MaxReason:
		return &keytype.ValueError{Field: "reason", Reason: fmt.Sprintf("is longer than %d bytes", MaxReason)}
	case !utf8.ValidString(reason):
		return &keytype.ValueError{Field: "reason", Reason: "is not valid UTF-8"}
	case strings.ContainsFunc(reason, unicode.IsControl):
		return &keytype.ValueError{Field: "reason", Reason: "contains a control character"}
	}
	return nil
}

func (e Event) check() error {
	for _, id := range []struct {
		field, value string
		optional     bool
	}{
		{"tenant", e.Tenant, false},
		{"actor", e.Actor, false},
		{"user_id", e.User, true},
		{"subject", e.Subject, true},
		{"request_id", e.RequestID, true},
	} {
		if id.optional && id.value == "" {
			continue
		}
		if err := keytype.CheckID(id.field, id.value); err != nil {
			return err
		}
	}
	switch {
	case !e.Action.known():
		return &keytype.ValueError{Field: "action", Reason: "is not known"}
	case len(e.Outcome) > MaxOutcome || !outcome.MatchString(string(e.Outcome)):
		return &keytype.ValueError{Field: "outcome", Reason: "is not a code"}
	}
	return CheckReason(e.Reason)
}

// secret is how session tokens and API keys look, whole or cut short. What is
// left of one that is shorter than this is not worth guessing from.
var secret = regexp.MustCompile(`(cst|csk)_[0-9A-Za-z_-]{16,}`)

// redacted returns the event without secrets, which people paste into reasons
// and programs send as request ids.
func (e Event) redacted() Event {
	for _, text := range []*string{&e.Actor, &e.User, &e.Subject, &e.Reason, &e.RequestID} {
		*text = secret.ReplaceAllString(*text, "${1}_[redacted]")
	}
	return e
}

// LogValue spells the whole event, for the log that takes what the store did not.
func (e Event) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", e.ID.String()),
		slog.Time("at", e.At()),
		slog.String("tenant", e.Tenant),
		slog.String("actor", e.Actor),
		slog.String("action", string(e.Action)),
		slog.String("user", e.User),
		slog.String("subject", e.Subject),
		slog.String("reason", e.Reason),
		slog.String("request_id", e.RequestID),
		slog.String("outcome", string(e.Outcome)),
		slog.Int("repeats", e.Repeats),
	)
}
