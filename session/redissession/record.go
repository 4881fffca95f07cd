package redissession

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/coordsvc/coordsvc/session"
)

// A user's value is "1 ver chk hold " and what encodeUser makes:
//
//	1      the format
//	ver    the record's version, and the least that is believed
//	chk    the server's ms before the record was read; it is fresh until chk + F. 0 = only ver counts
//	hold   ver counts at least until here, ms
//
// A session's value is "2 ver seen durable " and what encodeRecord makes:
//
//	ver      the version of the user's record that was read before it
//	seen     the last use that is known here, ms of the clocks of those who verify
//	durable  the last use that the durable store knows or was told, ms of the same
const userHead, sessionHead = 4, 4

// errFormat is a value that these functions did not write.
var errFormat = errors.New("redissession: a value has an unknown format")

// encodeUser is "sv pv disabled <bytes of the tenant>:<tenant><user>".
func encodeUser(u session.User) string {
	return fmt.Sprintf("%d %d %d %d:%s%s", u.SessionVersion, u.PermissionEpoch, flag(u.Disabled), len(u.Tenant), u.Tenant, u.User)
}

func decodeUser(value string) (session.User, error) {
	f := strings.SplitN(value, " ", userHead+4)
	if len(f) != userHead+4 || f[0] != "1" {
		return session.User{}, errFormat
	}
	digits, ids, _ := strings.Cut(f[7], ":")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > len(ids) {
		return session.User{}, errFormat
	}
	u := session.User{Tenant: ids[:n], User: ids[n:], Disabled: f[6] == "1"}
	err = errors.Join(number(f[1], &u.Version), number(f[4], &u.SessionVersion), number(f[5], &u.PermissionEpoch))
	return u, err
}

// encodeRecord is "active se abs idle aal auth_at hash previous-hash grace-end
// previous-aal previous-auth_at tenant-epoch " and the whole record as JSON; empty for no
// record. The script judges by the fields, people are shown what the JSON says.
func encodeRecord(r session.Record) (string, error) {
	if r.State == "" {
		return "", nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	p := r.Previous
	return fmt.Sprintf("%d %d %d %d %d %d %s %s %d %d %d %d %s",
		flag(r.State == session.StateActive), r.SessionVersion, r.Absolute, r.Idle, r.AAL, r.AuthAt, hex.EncodeToString(r.TokenHash),
		hex.EncodeToString(p.TokenHash), p.GraceUntil, p.AAL, p.AuthAt, r.TenantEpoch, text), nil
}

func decodeRecord(value string) (r session.Record, durable int64, err error) {
	f := strings.SplitN(value, " ", sessionHead+13)
	if len(f) != sessionHead+13 || f[0] != "2" {
		return r, 0, errFormat
	}
	if err := json.Unmarshal([]byte(f[sessionHead+12]), &r); err != nil {
		return r, 0, fmt.Errorf("%w: %w", errFormat, err)
	}
	err = errors.Join(number(f[2], &r.Seen), number(f[3], &durable))
	return r, durable, err
}

// decodeVerdict reads what verify.lua returns.
func decodeVerdict(reply any) (c session.Cached, err error) {
	f, ok := reply.([]any)
	if !ok || len(f) < 3 {
		return c, fmt.Errorf("%w: answer %v", errFormat, reply)
	}
	c.At, c.Version = integer(f[1]), integer(f[2])
	if f[0] == "miss" {
		return c, nil
	}
	if len(f) != 7 {
		return c, fmt.Errorf("%w: answer of %d parts", errFormat, len(f))
	}
	c.Found = session.FoundStale
	if f[0] == "hit" {
		c.Found = session.FoundFresh
	}
	reason, _ := f[3].(string)
	user, _ := f[4].(string)
	record, _ := f[5].(string)
	c.Reason, c.TouchDurably = session.Reason(reason), integer(f[6]) == 1
	if c.User, err = decodeUser(user); err != nil {
		return c, err
	}
	c.Record, c.DurableSeen, err = decodeRecord(record)
	return c, err
}

func integer(v any) int64 {
	n, _ := v.(int64)
	return n
}

func number(text string, to *int64) (err error) {
	if *to, err = strconv.ParseInt(text, 10, 64); err != nil {
		return fmt.Errorf("%w: %w", errFormat, err)
	}
	return nil
}
