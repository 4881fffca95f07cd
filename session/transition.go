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
	Version         int64  `json:"ver"`     // rises with every change that can alter the answer of a verify
	Creates         int64  `json:"creates"` // rises with every login, so that two at once notice each other
	// Until is when the record of an erased user may be removed, in Unix milliseconds:
	// when the longest of their sessions, in whatever copy, could end. 0 = never.
	Until int64 `json:"until,omitempty"`
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
	TenantEpoch     int64    `json:"te,omitempty"`
	Previous        Previous `json:"prev,omitzero"`
}

// Previous is the token before the last rotation, and what it stood for.
type Previous struct {
	TokenHash  []byte   `json:"th"`
	AAL        int      `json:"aal"`
	AMR        []string `json:"amr,omitempty"`
	AuthAt     int64    `json:"auth_at"`
	GraceUntil int64    `json:"grace"` // it verifies before that instant

	PermissionEpoch int64 `json:"pe,omitempty"`
}

// A Tracking is how closely a store follows the last use of a session, in
// milliseconds. Slack is what it allows beyond the idle time because the use it
// knows may not be the last.
type Tracking struct {
	Every int64 // a use is recorded when the recorded one is at least this old
	Slack int64 // the session is idle from seen + idle + Slack on
}

// DurableTracking is that of a store where recording a use costs a durable write: at
// most one per D = min(5 min, idle/5). A use within D of the recorded one leaves
// no trace, so the session is given D longer: it is never refused within the idle
// time of its last use, and never good for longer than idle + D after it.
func DurableTracking(idle int64) Tracking {
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
	u.Creates++
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

// EndIdle ends a session that counts as idle, so that it does not come back when
// its last use was recorded late, and reports whether it did.
func EndIdle(u User, r Record, tenant string, now time.Time, t Tracking) (Record, bool) {
	if Judge(u, r, tenant, now, t.Slack) != IdleExpired {
		return r, false
	}
	r.State = StateRevoked
	return r, true
}

// Readable reports whether the operation may read the session.
func Readable(u User, r Record, op GetOp, t Tracking) bool {
	return r.TenantEpoch >= op.TenantEpoch && Judge(u, r, op.Tenant, op.Now, t.Slack) == ""
}

// Counts reports whether the session counts against the login's limit.
func Counts(u User, r Record, op CreateOp, t Tracking) bool {
	return r.TenantEpoch >= op.Record.TenantEpoch && Judge(u, r, op.User.Tenant, op.At(), t.Slack) == ""
}

// A holding is how a token's hash relates to a session.
type holding uint8

const (
	holdsNothing holding = iota
	holdsCurrent
	holdsPrevious // in its grace
	holdsOld      // after it
)

// held says what the token is to the session. The comparisons take the same time wherever the hashes differ.
func (r Record) held(tokenHash []byte, now time.Time) holding {
	switch {
	case r.opens(tokenHash):
		return holdsCurrent
	case !same(r.Previous.TokenHash, tokenHash):
		return holdsNothing
	case now.UnixMilli() < r.Previous.GraceUntil:
		return holdsPrevious
	}
	return holdsOld
}

// before is the session as its previous token stands for it: that one gains nothing by the rotation.
func (r Record) before() Record {
	p := r.Previous
	r.AAL, r.AMR, r.AuthAt, r.PermissionEpoch = p.AAL, p.AMR, p.AuthAt, p.PermissionEpoch
	return r
}

// Verify judges a token and what is demanded of its session. The record it returns
// has the use in it where that was due; nothing else in it ever changes.
func Verify(u User, r Record, op VerifyOp, t Tracking) (Record, Verdict) {
	hold, as := r.held(op.TokenHash, op.Now), r
	if hold == holdsPrevious {
		as = r.before()
	}
	reason := refuse(u, as, hold, op, t)
	old := reason != Unknown && (hold == holdsPrevious || hold == holdsOld)
	if reason != "" {
		return r, Verdict{Reason: reason, OldToken: old}
	}
	if at := op.Now.UnixMilli(); !op.NoTouch && at-r.Seen >= t.Every {
		r.Seen, as.Seen = at, at
	}
	return r, Verdict{
		Active:           true,
		Session:          as.Session(u, op.Key, t),
		PermissionsStale: as.PermissionEpoch < u.PermissionEpoch,
		OldToken:         old,
	}
}

func refuse(u User, r Record, hold holding, op VerifyOp, t Tracking) Reason {
	if hold == holdsNothing || op.UserID != "" && op.UserID != u.User {
		return Unknown
	}
	reason := Judge(u, r, op.Tenant, op.Now, t.Slack)
	switch {
	case reason == Unknown:
		return Unknown
	case hold == holdsOld:
		return Rotated
	case reason == Revoked:
		return Revoked
	case r.TenantEpoch < op.TenantEpoch:
		return Epoch
	case reason != "":
		return reason
	case r.AAL < op.MinAAL:
		return AAL
	case op.MaxAuthAge > 0 && op.Now.UnixMilli()-r.AuthAt > op.MaxAuthAge.Milliseconds():
		return AuthAge
	}
	return ""
}

// Rotate decides a rotation. Only the current token can be replaced: whoever has
// the one before it must not come by a new one. The end of the session stays.
func Rotate(u User, r Record, op RotateOp, t Tracking) (User, Record, Outcome) {
	if !r.opens(op.TokenHash) || r.TenantEpoch < op.TenantEpoch || Judge(u, r, op.Tenant, op.Now, t.Slack) != "" {
		return u, r, RefusedNotActive
	}
	at := op.Now.UnixMilli()
	r.Previous = Previous{
		TokenHash: r.TokenHash, AAL: r.AAL, AMR: r.AMR, AuthAt: r.AuthAt, PermissionEpoch: r.PermissionEpoch,
		GraceUntil: at + Grace.Milliseconds(),
	}
	r.TokenHash, r.PermissionEpoch = op.NewHash, u.PermissionEpoch
	r.Seen = max(r.Seen, at)
	if op.AAL > 0 || op.AMR != nil {
		r.AAL, r.AuthAt = max(r.AAL, op.AAL), at
	}
	if op.AMR != nil {
		r.AMR = op.AMR
	}
	u.Version++
	return u, r, Done
}

// Revoke ends a session, by its token, the one before that whatever its grace, or
// by its key alone. It does so also where the session is dead for another
// reason: only its own record says so under any clock.
func Revoke(u User, r Record, op RevokeOp) (User, Record, Outcome) {
	switch {
	case u.Version == 0 || r.State == "" || u.Tenant != op.Tenant:
		return u, r, RefusedUnknown
	case op.TokenHash != nil && !r.opens(op.TokenHash) && !same(r.Previous.TokenHash, op.TokenHash):
		return u, r, RefusedUnknown
	case r.State == StateActive:
		r.State = StateRevoked
		u.Version++
	}
	return u, r, Done
}

// WriteData decides a write of the data of a live session.
func WriteData(u User, r Record, old Data, op WriteDataOp, t Tracking) (Data, Outcome) {
	switch {
	case r.TenantEpoch < op.TenantEpoch || Judge(u, r, op.Tenant, op.Now, t.Slack) != "":
		return old, RefusedUnknown
	case op.Version != old.Version:
		return old, RefusedDataVersion
	}
	return Data{Value: op.Data, Version: old.Version + 1}, Done
}

// Change decides a change of the user's record. The record of the session to keep
// comes back re-stamped; only an active one can be kept, so that nothing that had
// ended lives again. Disabling keeps the session version; enabling raises it, also
// that of a user who was not disabled, so that sessions from before stay dead. So does
// erasing, which disables as well.
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
		u.Until = 0
	case Erase:
		u.Disabled = true
		u.SessionVersion++
		u.Until = op.Now.Add(MaxTTL).UnixMilli()
	}
	u.Version++
	return u, kept, Done
}

func keepable(u User, r Record, op ChangeOp, t Tracking) bool {
	return r.opens(op.Keep.TokenHash) && r.TenantEpoch >= op.Keep.TenantEpoch && Judge(u, r, op.User.Tenant, op.Now, t.Slack) == ""
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
		TenantEpoch:     r.TenantEpoch,
		DeviceID:        r.DeviceID,
		IP:              r.IP,
		UserAgent:       r.UserAgent,
	}
}

// opens reports whether the hash is that of the session's token.
func (r Record) opens(tokenHash []byte) bool { return same(r.TokenHash, tokenHash) }

// same takes the same time wherever the two differ. What is not stored is nobody's.
func same(stored, given []byte) bool {
	return len(stored) > 0 && subtle.ConstantTimeCompare(stored, given) == 1
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
