package fencing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/coordsvc/coordsvc/keytype"
)

// check returns the value in its compact form, by which values are compared.
func (r WriteRequest) check() (compact []byte, err error) {
	if err := r.Position.check(); err != nil {
		return nil, err
	}
	if err := r.checkMode(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, r.Value); err != nil || !utf8.Valid(r.Value) {
		return nil, &keytype.ValueError{Field: "value", Reason: "is not JSON"}
	}
	if b.Len() > MaxValue {
		return nil, &keytype.ValueError{Field: "value", Reason: fmt.Sprintf("is longer than %d bytes", MaxValue)}
	}
	return b.Bytes(), nil
}

func (r WriteRequest) mode() Mode {
	if r.Mode == "" {
		return Leased
	}
	return r.Mode
}

func (r WriteRequest) checkMode() error {
	switch {
	case r.mode() == Leased:
		return keytype.CheckID("lease_id", r.LeaseID)
	case r.Mode != HighWater:
		return &keytype.ValueError{Field: "mode", Reason: fmt.Sprintf("must be %q or %q", Leased, HighWater)}
	case r.LeaseID != "":
		return &keytype.ValueError{Field: "lease_id", Reason: fmt.Sprintf("is not looked at in mode %q", HighWater)}
	}
	return nil
}

func (p Position) check() error {
	if err := keytype.CheckRange("fencing_token", int64(p.Token), 1, int64(MaxToken)); err != nil {
		return err
	}
	if p.Sequence == 0 {
		return nil
	}
	return keytype.CheckRange("sequence", p.Sequence, 1, MaxSequence)
}

func checkResource(tenant, resource string) error {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return err
	}
	return keytype.CheckID("resource", resource)
}

func checkKey(tenant, resource, key string) error {
	if err := checkResource(tenant, resource); err != nil {
		return err
	}
	return keytype.CheckID("key", key)
}
