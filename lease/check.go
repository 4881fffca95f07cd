package lease

import (
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
)

func (r AcquireRequest) check(tenant, resource string) error {
	if err := checkResource(tenant, resource); err != nil {
		return err
	}
	if err := keytype.CheckID("owner", r.Owner); err != nil {
		return err
	}
	if err := checkTTL(r.TTL); err != nil {
		return err
	}
	if r.RequestID != "" {
		if err := keytype.CheckID("request_id", r.RequestID); err != nil {
			return err
		}
	}
	return keytype.CheckRange("max_ttl_ms", r.maxHold().Milliseconds(), r.TTL.Milliseconds(), MaxHold.Milliseconds())
}

func (r AcquireRequest) maxHold() time.Duration {
	if r.MaxHold == 0 {
		return MaxHold
	}
	return r.MaxHold
}

func checkRenew(tenant, resource string, h Holder, ttl time.Duration) error {
	if err := checkHolder(tenant, resource, h); err != nil {
		return err
	}
	return checkTTL(ttl)
}

func checkHolder(tenant, resource string, h Holder) error {
	if err := checkResource(tenant, resource); err != nil {
		return err
	}
	if err := keytype.CheckID("lease_id", h.ID); err != nil {
		return err
	}
	return keytype.CheckRange("fencing_token", int64(h.Token), 1, int64(fencing.MaxToken))
}

func checkTTL(ttl time.Duration) error {
	return keytype.CheckRange("ttl_ms", ttl.Milliseconds(), MinTTL.Milliseconds(), MaxTTL.Milliseconds())
}

func checkResource(tenant, resource string) error {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return err
	}
	return keytype.CheckID("resource", resource)
}
