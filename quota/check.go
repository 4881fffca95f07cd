package quota

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

func (id ID) check() error {
	for _, part := range []struct{ field, value string }{{"tenant", id.Tenant}, {"name", id.Name}, {"subject", id.Subject}} {
		if err := keytype.CheckID(part.field, part.value); err != nil {
			return err
		}
	}
	return nil
}

func (d Definition) check() error {
	if err := checkAmount("limit", d.Limit); err != nil {
		return err
	}
	if err := d.Window.check(); err != nil {
		return err
	}
	if err := keytype.CheckID("zone", d.Zone); err != nil {
		return err
	}
	if _, err := location(d.Zone); err != nil || ofThisMachine(d.Zone) {
		return &keytype.ValueError{Field: "zone", Reason: "must be an IANA time zone, for example Europe/Berlin"}
	}
	return nil
}

// ofThisMachine: the name means something by this machine's zone files alone, if it
// has any. Another node would not know it, or take it for another zone.
func ofThisMachine(zone string) bool {
	return path.Clean(zone) != zone || strings.HasPrefix(zone, "posix/") || strings.HasPrefix(zone, "right/") ||
		slices.Contains([]string{"Local", "localtime", "posixrules", "Factory"}, zone)
}

func checkUse(amount int64, requestID string) error {
	if err := checkAmount("amount", amount); err != nil {
		return err
	}
	return keytype.CheckID("request_id", requestID)
}

func checkAmount(field string, n int64) error { return keytype.CheckRange(field, n, 1, MaxAmount) }

func checkTTL(ttl time.Duration) error {
	return keytype.CheckRange("ttl_ms", ttl.Milliseconds(), MinTTL.Milliseconds(), MaxTTL.Milliseconds())
}

func checkReservation(id string) error { return keytype.CheckID("id", id) }

// refusal is nil where the step is done.
func (out Outcome) refusal(amount int64, now time.Time) error {
	switch out.Verdict {
	case Done:
		return nil
	case Unset:
		return ErrUnset
	case Exceeded:
		e := &ExceededError{Available: out.Account.Available, Never: amount > out.Account.Limit}
		if ends := out.Account.Ends; !ends.IsZero() && !e.Never {
			e.RetryAfter = ends.Sub(now)
		}
		return e
	case Mismatch:
		return ErrMismatch
	case NoReservation:
		return ErrNoReservation
	case Expired:
		return ErrExpired
	case TooMuch:
		return keytype.CheckRange("amount", amount, 1, out.Reserved)
	case Spared:
	}
	panic("quota: a store returned no verdict")
}
