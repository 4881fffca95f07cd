package lease

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
)

// check returns the data in its compact form.
func (r AcquireRequest) check(tenant, resource string) (data string, err error) {
	if err := r.checkIDs(tenant, resource); err != nil {
		return "", err
	}
	if err := checkTTL(r.TTL); err != nil {
		return "", err
	}
	if err := r.checkHold(); err != nil {
		return "", err
	}
	if err := keytype.CheckRange("wait_ms", r.Wait.Milliseconds(), 0, MaxWait.Milliseconds()); err != nil {
		return "", err
	}
	return compact(r.Data)
}

func (r AcquireRequest) checkIDs(tenant, resource string) error {
	if err := checkResource(tenant, resource); err != nil {
		return err
	}
	if err := keytype.CheckID("owner", r.Owner); err != nil {
		return err
	}
	return checkRequestID(r.RequestID)
}

func (r AcquireRequest) checkHold() error {
	return keytype.CheckRange("max_ttl_ms", r.maxHold().Milliseconds(), r.TTL.Milliseconds(), MaxHold.Milliseconds())
}

func (r AcquireRequest) maxHold() time.Duration {
	if r.MaxHold == 0 {
		return MaxHold
	}
	return r.MaxHold
}

// compact takes the space out of JSON, and leaves none as none.
func compact(data string) (string, error) {
	if data == "" {
		return "", nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(data)); err != nil || !utf8.ValidString(data) {
		return "", &keytype.ValueError{Field: "data", Reason: "is not JSON"}
	}
	if b.Len() > MaxData {
		return "", &keytype.ValueError{Field: "data", Reason: fmt.Sprintf("is longer than %d bytes", MaxData)}
	}
	return b.String(), nil
}

func checkForce(tenant, resource string, token fencing.Token, requestID string) error {
	if err := checkResource(tenant, resource); err != nil {
		return err
	}
	if err := checkRequestID(requestID); err != nil {
		return err
	}
	return checkToken(token)
}

func checkRequestID(id string) error {
	if id == "" {
		return nil
	}
	return keytype.CheckID("request_id", id)
}

func checkToken(t fencing.Token) error {
	return keytype.CheckRange("fencing_token", int64(t), 1, int64(fencing.MaxToken))
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
	return checkToken(h.Token)
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
