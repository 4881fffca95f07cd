package session

import (
	"crypto/subtle"
	"time"
)

// A User is the stored record of a user; the zero User is a user without one.
type User struct {
	Tenant          string `json:"tenant"`
	User            string `json:"user"`
	SessionVersion  int64  `json:"sv"`
	PermissionEpoch int64  `json:"pv"`
	Disabled        bool   `json:"disabled,omitempty"`
	Version         int64  `json:"ver"` // rises with every change that can alter the answer of a verify
}

// The states of a session's record.
const (
	StateActive  = "active"
	StateRevoked = "revoked" // for good
)

// A Record is the stored record of a session; the zero Record is a session without
// one. Instants are Unix milliseconds.
type Record struct {
	TokenHash       []byte   `json:"th"`
	State           string   `json:"state"`
	SessionVersion  int64    `json:"se"`
	PermissionEpoch int64    `json:"pe"`
	IssuedAt        int64    `json:"iat"`
	Absolute        int64    `json:"abs"`  // the session is dead from here on; never changes
	Idle            int64    `json:"idle"` // milliseconds
	Seen            int64    `json:"seen"` // the last recorded use; never goes back
	AAL             int      `json:"aal"`
	AMR             []string `json:"amr,omitempty"`
	AuthAt          int64    `json:"auth_at"`
	DeviceID        string   `json:"device,omitempty"`
	IP              string   `json:"ip,omitempty"`
	UserAgent       string   `json:"ua,omitempty"`
}

// A Tracking is how closely a store follows the last use of a session, in
// milliseconds. Slack is what it allows beyond the idle time because the use it
// knows may not be the last.
type Tracking struct {
	Every int64 // a use is recorded when the recorded one is at least this old
	Slack int64 // the session is idle from seen + idle + Slack on
}

// Durable is the tracking of a store where recording a use costs a durable write: at
// most one per D = min(5 min, idle/5). A use within D of the recorded one leaves
// no trace, so the session is given D longer: it is never refused within the idle
// time of its last use, and never good for longer than idle + D after it.
func Durable(idle int64) Tracking {
	d := min((5 * time.Minute).Milliseconds(), idle/5)
	return Tracking{Every: d, Slack: d}
}

// NewUser is the first record of a user.
func NewUser(k UserKey) User {
	return User{Tenant: k.Tenant, User: k.User, SessionVersion: 1, PermissionEpoch: 1, Version: 1}
}

// Create decides a login. The session carries the numbers of the user's record at
// that very point, so that it is either before or after each logout-all.
func Create(u User, op CreateOp) (User, Record, Outcome) {
	u = u.orNew(op.User)
	switch {
	case u.Disabled:
		return u, Record{}, RefusedDisabled
	case op.ExpectedVersion != nil && *op.ExpectedVersion != u.SessionVersion:
		return u, Record{}, RefusedVersion
	}
	r := op.Record
	r.State, r.SessionVersion, r.PermissionEpoch = StateActive, u.SessionVersion, u.PermissionEpoch
	return u, r, Done
}

// Judge says why the session is not active at the instant, "" if it is. Slack is
// that of the store's [Tracking].
func Judge(u User, r Record, tenant string, now time.Time, slack int64) Reason {
	at := now.UnixMilli()
	switch {
	case u.Version == 0 || r.State == "" || u.Tenant != tenant:
		return Unknown
	case r.State != StateActive:
		return Revoked
	case r.SessionVersion != u.SessionVersion:
		return Epoch
	case u.Disabled:
		return Disabled
	case at >= r.Absolute:
		return Expired
	case at >= r.Seen+r.Idle+slack:
		return IdleExpired
	}
	return ""
}

// Verify judges a token and what is demanded of its session. The record it returns
// has the use in it where that was due; nothing else in it ever changes.
func Verify(u User, r Record, op VerifyOp, t Tracking) (Record, Verdict) {
	if reason := refuse(u, r, op, t); reason != "" {
		return r, Verdict{Reason: reason}
	}
	if at := op.Now.UnixMilli(); !op.NoTouch && at-r.Seen >= t.Every {
		r.Seen = at
	}
	return r, Verdict{
		Active:           true,
		Session:          r.Session(u, op.Key, t),
		PermissionsStale: r.PermissionEpoch < u.PermissionEpoch,
	}
}

func refuse(u User, r Record, op VerifyOp, t Tracking) Reason {
	if !r.opens(op.TokenHash) || op.UserID != "" && op.UserID != u.User {
		return Unknown
	}
	if reason := Judge(u, r, op.Tenant, op.Now, t.Slack); reason != "" {
		return reason
	}
	switch {
	case r.AAL < op.MinAAL:
		return AAL
	case op.MaxAuthAge > 0 && op.Now.UnixMilli()-r.AuthAt > op.MaxAuthAge.Milliseconds():
		return AuthAge
	}
	return ""
}

// Revoke ends a session. It does so also where the session is dead for another
// reason: only its own record says so under any clock.
func Revoke(u User, r Record, op RevokeOp) (User, Record, Outcome) {
	switch {
	case u.Version == 0 || r.State == "" || u.Tenant != op.Tenant:
		return u, r, RefusedUnknown
	case op.TokenHash != nil && !r.opens(op.TokenHash):
		return u, r, RefusedUnknown
	case r.State == StateActive:
		r.State = StateRevoked
		u.Version++
	}
	return u, r, Done
}

// Change decides a change of the user's record. The record of the session to keep
// comes back re-stamped; only an active one can be kept, so that nothing that had
// ended lives again. Disabling keeps the session version; enabling raises it, also
// that of a user who was not disabled, so that sessions from before stay dead.
func Change(u User, kept Record, op ChangeOp, t Tracking) (User, Record, Outcome) {
	u = u.orNew(op.User)
	switch op.Kind {
	case LogoutAll:
		if op.Keep != nil && !keepable(u, kept, op, t) {
			return u, kept, RefusedNotActive
		}
		u.SessionVersion++
		if op.Keep != nil {
			kept.SessionVersion = u.SessionVersion
		}
	case BumpPermissions:
		u.PermissionEpoch++
	case Disable:
		u.Disabled = true
	case Enable:
		u.Disabled = false
		u.SessionVersion++
	}
	u.Version++
	return u, kept, Done
}

func keepable(u User, r Record, op ChangeOp, t Tracking) bool {
	return r.opens(op.Keep.TokenHash) && Judge(u, r, op.User.Tenant, op.Now, t.Slack) == ""
}

// Session is the record as callers see it.
func (r Record) Session(u User, k Key, t Tracking) Session {
	return Session{
		Handle:          handlePrefix + k.Tag + k.ID,
		UserID:          u.User,
		IssuedAt:        instant(r.IssuedAt),
		ExpiresAt:       instant(r.Absolute),
		IdleExpiresAt:   instant(min(r.Absolute, r.Seen+r.Idle+t.Slack)),
		LastSeenAt:      instant(r.Seen),
		AAL:             r.AAL,
		AMR:             r.AMR,
		AuthAt:          instant(r.AuthAt),
		SessionVersion:  r.SessionVersion,
		PermissionEpoch: r.PermissionEpoch,
		DeviceID:        r.DeviceID,
		IP:              r.IP,
		UserAgent:       r.UserAgent,
	}
}

// opens reports whether the hash is that of the session's token. The comparison
// takes the same time wherever the two differ.
func (r Record) opens(tokenHash []byte) bool {
	return len(r.TokenHash) > 0 && subtle.ConstantTimeCompare(r.TokenHash, tokenHash) == 1
}

// Epochs are the user's numbers as callers see them.
func (u User) Epochs() Epochs {
	return Epochs{SessionVersion: u.SessionVersion, PermissionEpoch: u.PermissionEpoch, Disabled: u.Disabled}
}

func (u User) orNew(k UserKey) User {
	if u.Version == 0 {
		return NewUser(k)
	}
	return u
}

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
