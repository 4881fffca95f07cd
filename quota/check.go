package quota

import (
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
	if _, err := location(d.Zone); err != nil || d.Zone == "Local" { // this machine's own zone, whatever it is
		return &keytype.ValueError{Field: "zone", Reason: "must be an IANA time zone, for example Europe/Berlin"}
	}
	return nil
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
		e := &ExceededError{Available: out.Account.Available}
		if ends := out.Account.Ends; !ends.IsZero() && amount <= out.Account.Limit {
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
