package idempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/coordsvc/coordsvc/keytype"
)

func (r ClaimRequest) check(tenant, key string) error {
	return cmp.Or(checkKey(tenant, key), keytype.CheckID("fingerprint", r.Fingerprint), checkLockTTL(r.LockTTL), r.checkTTL(), r.checkRequestID())
}

func (r ClaimRequest) checkTTL() error {
	return keytype.CheckRange("ttl_ms", r.TTL.Milliseconds(), MinTTL.Milliseconds(), MaxTTL.Milliseconds())
}

func (r ClaimRequest) checkRequestID() error {
	if r.RequestID == "" {
		return nil
	}
	return keytype.CheckID("request_id", r.RequestID)
}

func checkKey(tenant, key string) error {
	return cmp.Or(keytype.CheckID("tenant", tenant), keytype.CheckID("key", key))
}

func checkClaim(tenant, key, claimID string) error {
	return cmp.Or(checkKey(tenant, key), keytype.CheckID("claim_id", claimID))
}

func checkLockTTL(ttl time.Duration) error {
	return keytype.CheckRange("lock_ttl_ms", ttl.Milliseconds(), MinTTL.Milliseconds(), MaxLockTTL.Milliseconds())
}

// compact takes the space out of JSON.
func compact(response string) (string, error) {
	var b bytes.Buffer
	if response == "" {
		return "", &keytype.ValueError{Field: "response", Reason: "is required"}
	}
	if err := json.Compact(&b, []byte(response)); err != nil || !utf8.ValidString(response) {
		return "", &keytype.ValueError{Field: "response", Reason: "is not JSON"}
	}
	if b.Len() > MaxResponse {
		return "", &keytype.ValueError{Field: "response", Reason: fmt.Sprintf("is longer than %d bytes", MaxResponse)}
	}
	return b.String(), nil
}
