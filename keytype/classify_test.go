package keytype

import "testing"

func TestOfItemTellsTypesOfATableApart(t *testing.T) {
	for _, c := range []struct {
		of        *Type
		partition string
		sort      string
	}{
		{Session, "U#tag", "S#id"},
		{UserEpoch, "U#tag", "E"},
		{TenantEpoch, "T#tenant", "T"},
		{SessionData, "U#tag", "D#id"},
		{Session, "", ""}, // a query names no item: what the table is there for
		{Lease, Lease.Key("t", "r"), ""},
		{FenceFloor, FenceFloor.Key("floor"), ""},
		{Lease, "", ""},
		{QuotaReservation, QuotaReservation.Key("t", "n", "s", "i"), ""},
		{AuditEvent, AuditEvent.Key("t", "2026-12.0"), "id"},
		{APIKey, APIKey.Key("k"), ""},
	} {
		if got, ok := OfItem("p_", c.of.TableName("p_"), c.partition, c.sort); !ok || got != c.of {
			t.Errorf("%s %q %q is %v, want %s", c.of.Table, c.partition, c.sort, got, c.of.Name)
		}
	}
	for _, table := range []string{"leases", "q_leases", "p_", "p_unknown"} {
		if got, ok := OfItem("p_", table, "", ""); ok {
			t.Errorf("%s is of %s", table, got.Name)
		}
	}
}

// Every type that is kept or cached in Redis is known again by its key.
func TestOfRedisKey(t *testing.T) {
	for _, kind := range All() {
		var key string
		parts := make([]string, len(kind.Parts))
		for i := range parts {
			parts[i] = "E:s:}" + kind.Name // of no type's form
		}
		switch {
		case kind.Cache != "":
			for i := range parts {
				parts[i] = "abc"
			}
			key = kind.CacheKey("p:", parts...)
		case kind.Store == "redis":
			key = kind.Tagged("p:", "tag", kind.Key(parts...))
		default:
			continue
		}
		if got, ok := OfRedisKey("p:", key); !ok || got != kind {
			t.Errorf("%s is %v, want %s", key, got, kind.Name)
		}
		if kind.Mark == "" {
			continue
		}
		if hidden := NewVeil(make([]byte, 32)).Tagged(kind, "p:", "tag", "key"); !isOf(hidden, kind) {
			t.Errorf("%s is not of %s", hidden, kind.Name)
		}
	}
	for _, key := range []string{"", "p:", "p:x", "p:{tag}unknown:1:a", "p:cs:{t", "p:cs:{t}:x:y", "other", "q:store_marker"} {
		if got, ok := OfRedisKey("p:", key); ok {
			t.Errorf("%q is of %s", key, got.Name)
		}
	}
}

func isOf(key string, kind *Type) bool {
	got, ok := OfRedisKey("p:", key)
	return ok && got == kind
}
