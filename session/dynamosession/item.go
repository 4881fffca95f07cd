package dynamosession

import (
	"encoding/json"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// format is the number of all three kinds of item.
const format = 1

// Key attributes, and the second after which DynamoDB may remove an item.
const (
	partition = "pk"
	sort      = "sk"
	ttl       = "ttl"
)

func userKey(tag string) dynamo.Item { return key(keytype.UserEpoch.ItemKey(tag)) }

func recordKey(k session.Key) dynamo.Item { return key(keytype.Session.ItemKey(k.Tag, k.ID)) }

func dataKey(k session.Key) dynamo.Item { return key(keytype.SessionData.ItemKey(k.Tag, k.ID)) }

func tenantKey(tenant string) dynamo.Item { return key(keytype.TenantEpoch.ItemKey(tenant)) }

func key(pk, sk string) dynamo.Item {
	return dynamo.Item{partition: dynamo.S(pk), sort: dynamo.S(sk)}
}

func readUser(item dynamo.Item) (session.User, error) {
	r := dynamo.Read(item, format)
	return session.User{
		Tenant:          r.Str("tenant"),
		User:            r.Str("user"),
		SessionVersion:  r.Int("sv"),
		PermissionEpoch: r.Int("pv"),
		Disabled:        r.Bool("disabled"),
		Version:         r.Int("ver"),
		Creates:         r.Int("creates"),
		Until:           r.Int("until"),
	}, r.Err()
}

func readRecord(item dynamo.Item) (session.Record, error) {
	if len(item) == 0 {
		return session.Record{}, nil
	}
	r := dynamo.Read(item, format)
	rec := session.Record{
		TokenHash:       r.Bytes("th"),
		State:           r.Str("state"),
		SessionVersion:  r.Int("se"),
		PermissionEpoch: r.Int("pe"),
		IssuedAt:        r.Int("iat"),
		Absolute:        r.Int("abs"),
		Idle:            r.Int("idle"),
		Seen:            r.Int("seen"),
		AAL:             int(r.Int("aal")),
		AuthAt:          r.Int("auth_at"),
		DeviceID:        r.Str("device"),
		IP:              r.Str("ip"),
		UserAgent:       r.Str("ua"),
		TenantEpoch:     r.Int("te"),
		Previous: session.Previous{
			TokenHash:  r.Bytes("prev_th"),
			AAL:        int(r.Int("prev_aal")),
			AuthAt:     r.Int("prev_auth_at"),
			GraceUntil: r.Int("grace_until"),

			PermissionEpoch: r.Int("prev_pe"),
		},
	}
	if err := r.Err(); err != nil {
		return session.Record{}, err
	}
	var err error
	if rec.AMR, err = readMethods(r.Str("amr")); err != nil {
		return session.Record{}, err
	}
	rec.Previous.AMR, err = readMethods(r.Str("prev_amr"))
	return rec, err
}

func readData(item dynamo.Item) (session.Data, error) {
	r := dynamo.Read(item, format)
	return session.Data{Value: r.Bytes("data"), Version: r.Int("dver")}, r.Err()
}

// created are the assignments of a new session, and their values.
func created(r session.Record) (string, dynamo.Item) {
	set := "#th = :th, #state = :state, #se = :se, #pe = :pe, #iat = :iat, #abs = :abs, #idle = :idle, #seen = :seen, " +
		"#aal = :aal, #amr = :amr, #auth_at = :auth_at, #device = :device, #ip = :ip, #ua = :ua, #te = :te, #ttl = :ttl"
	return set, dynamo.Item{
		":th": dynamo.B(r.TokenHash), ":state": dynamo.S(r.State), ":se": dynamo.N(r.SessionVersion), ":pe": dynamo.N(r.PermissionEpoch),
		":iat": dynamo.N(r.IssuedAt), ":abs": dynamo.N(r.Absolute), ":idle": dynamo.N(r.Idle), ":seen": dynamo.N(r.Seen),
		":aal": dynamo.N(r.AAL), ":amr": dynamo.S(methods(r.AMR)), ":auth_at": dynamo.N(r.AuthAt),
		":device": dynamo.S(r.DeviceID), ":ip": dynamo.S(r.IP), ":ua": dynamo.S(r.UserAgent), ":te": dynamo.N(r.TenantEpoch), ":ttl": dynamo.N(seconds(r.Absolute)),
	}
}

// seconds is the first whole second at or after the instant.
func seconds(ms int64) int64 { return (ms + 999) / 1000 }

// methods keeps the order of authentication methods, which a string set would lose.
func methods(amr []string) string {
	if len(amr) == 0 {
		return ""
	}
	text, _ := json.Marshal(amr) // strings always encode
	return string(text)
}

func readMethods(text string) (amr []string, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &amr); err != nil {
		return nil, fmt.Errorf("dynamosession: attribute amr: %w", err)
	}
	return amr, nil
}
