package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// A kept is something that a store holds.
type kept struct {
	store string // as the key types name them in force
	key   string
	raw   []byte // all of it, the key too
	types []*keytype.Type
	ttl   time.Duration // in Redis
}

// inRedis is every key of Redis, but for the harness's own. Those that last for a second
// are written just before they are looked at.
func (e *everything) inRedis() (all []kept) {
	e.t.Helper()
	for range 10 {
		e.call(200, "POST", "/v1/ratelimit/token-leases", `{"policy":"leased","descriptors":{"app":"`+canaryUser+`"},"want":1,"holder":"`+canaryUser+`"}`)
		all = e.scanRedis()
		if slices.ContainsFunc(all, func(k kept) bool { return slices.Contains(k.types, keytype.TokenLease) }) {
			break
		}
	}
	return all
}

func (e *everything) scanRedis() (all []kept) {
	e.t.Helper()
	scan := e.client.Scan(e.t.Context(), 0, "", 100).Iterator()
	for scan.Next(e.t.Context()) {
		key := scan.Val()
		if strings.HasSuffix(key, "_selfcheck") {
			continue
		}
		value, err := e.client.Dump(e.t.Context(), key).Result()
		if errors.Is(err, redis.Nil) {
			continue // it has expired
		}
		if err != nil {
			e.t.Fatalf("dump %s: %v", key, err)
		}
		all = append(all, kept{"redis", key, []byte(key + "\n" + value), redisTypes(key), e.client.PTTL(e.t.Context(), key).Val()})
	}
	if err := scan.Err(); err != nil {
		e.t.Fatal(err)
	}
	return all
}

// redisTypes are those that claim the key.
func redisTypes(key string) (claim []*keytype.Type) {
	if t, _, ok := keytype.SplitTagged(redisPrefix, key); ok {
		return []*keytype.Type{t}
	}
	for _, t := range keytype.All() {
		if t.Cache == "" {
			continue
		}
		parts := make([]string, len(t.Parts))
		for i := range parts {
			parts[i] = strings.Repeat("0", 22)
		}
		if shape(key) == shape(t.CacheKey(redisPrefix, parts...)) {
			claim = append(claim, t)
		}
	}
	return claim
}

// shape is a key of Redis with its tags and ids, which are of 22 base62 digits, made alike.
func shape(key string) string {
	fields := strings.FieldsFunc(key, func(r rune) bool { return strings.ContainsRune(":{}", r) })
	for i, f := range fields {
		if len(f) == 22 {
			fields[i] = "<id>"
		}
	}
	return strings.Join(fields, " ")
}

// inTables is every item of every table with the prefix.
func (e *everything) inTables() (all []kept) {
	e.t.Helper()
	client := e.db.Client()
	tables, err := client.ListTables(e.t.Context(), &dynamodb.ListTablesInput{})
	if err != nil || tables.LastEvaluatedTableName != nil {
		e.t.Fatalf("%v, %v", tables, err)
	}
	for _, table := range tables.TableNames {
		name, ours := strings.CutPrefix(table, e.prefix)
		if !ours {
			continue
		}
		pages := dynamodb.NewScanPaginator(client, &dynamodb.ScanInput{TableName: &table})
		for pages.HasMorePages() {
			page, err := pages.NextPage(e.t.Context())
			if err != nil {
				e.t.Fatal(err)
			}
			for _, item := range page.Items {
				var raw bytes.Buffer
				flatten(&raw, &types.AttributeValueMemberM{Value: item})
				all = append(all, kept{"dynamodb", name + " " + stringOf(item["pk"]) + " " + stringOf(item["sk"]), raw.Bytes(), itemTypes(name, item), 0})
			}
		}
	}
	return all
}

func stringOf(v types.AttributeValue) string {
	s, _ := v.(*types.AttributeValueMemberS)
	if s == nil {
		return ""
	}
	return s.Value
}

// flatten writes every name and value, each on a line.
func flatten(w *bytes.Buffer, v types.AttributeValue) {
	switch v := v.(type) {
	case *types.AttributeValueMemberM:
		for name, value := range v.Value {
			w.WriteString(name + "\n")
			flatten(w, value)
		}
	case *types.AttributeValueMemberL:
		for _, value := range v.Value {
			flatten(w, value)
		}
	case *types.AttributeValueMemberB:
		w.Write(v.Value)
		w.WriteByte('\n')
	case *types.AttributeValueMemberS:
		w.WriteString(v.Value + "\n")
	default:
		fmt.Fprintf(w, "%+v\n", v)
	}
}

// withinItem are the attributes by which a type that shares another's item shows.
var withinItem = map[*keytype.Type]string{keytype.Fence: "mark", keytype.QuotaDue: "due"}

// itemTypes are those that claim the item, and those that share it.
func itemTypes(table string, item map[string]types.AttributeValue) (claim []*keytype.Type) {
	pk, sk := stringOf(item["pk"]), stringOf(item["sk"])
	for _, t := range keytype.All() {
		if t.Table != table || t.Within != nil {
			continue
		}
		if _, whole := t.Split(pk); whole && t.Sort == "" || t.Sort != "" && claimsItem(t, pk, sk) {
			claim = append(claim, t)
		}
	}
	for t, attribute := range withinItem {
		if item[attribute] != nil && len(claim) == 1 && t.Within == claim[0] {
			claim = append(claim, t)
		}
	}
	return claim
}

// claimsItem says whether the type's keys, in a table with a sort key, are of this form.
func claimsItem(t *keytype.Type, pk, sk string) bool {
	first, found := strings.CutPrefix(pk, t.Partition)
	second, sorted := strings.CutPrefix(sk, t.Sort)
	if !found || !sorted || len(t.Parts) == 1 && second != "" {
		return false
	}
	a, b := t.ItemKey(append([]string{first}, second)[:len(t.Parts)]...)
	return a == pk && b == sk
}

// inFile is every item of the embedded store, of which it is given a copy.
func (e *everything) inFile() (all []kept) {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), "copy.db")
	if err := os.WriteFile(path, e.file(), 0o600); err != nil {
		e.t.Fatal(err)
	}
	store, err := kv.Open(path, kv.BoltOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer store.Close()
	err = store.Walk(e.t.Context(), func(bucket, key string, value []byte) bool {
		k := kept{store: "bbolt", key: bucket + " " + key, raw: append([]byte(key+"\n"), value...)}
		if t, known := keytype.ByName(bucket); known && t.Bucket() == bucket {
			if _, whole := t.Split(key); whole {
				k.types = append(k.types, t)
			}
		}
		all = append(all, k)
		return true
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return all
}

// file is the embedded store as it lies on disk, what it no longer holds included.
func (e *everything) file() []byte {
	e.t.Helper()
	raw, err := os.ReadFile(filepath.Join(e.setting("COORD_DATA_DIR"), "coordsvc.db"))
	if err != nil {
		e.t.Fatal(err)
	}
	return raw
}

// Whatever lies in a store is of one registered type, and a run that uses
// everything leaves something of every type where it says that it is kept.
func (e *everything) checkTypes(t *testing.T, all []kept) {
	written := map[string]map[*keytype.Type]int{}
	for _, k := range all {
		if len(k.types) == 0 || len(k.types) > 1 && k.types[1].Within != k.types[0] {
			t.Errorf("%s: %q is claimed by %d types", k.store, k.key, len(k.types))
		}
		for _, kind := range k.types {
			if written[k.store] == nil {
				written[k.store] = map[*keytype.Type]int{}
			}
			written[k.store][kind]++
		}
	}
	for _, kind := range keytype.All() {
		force := e.mode.InForce(kind)
		for _, store := range []string{"redis", "dynamodb", "bbolt"} {
			n := written[store][kind]
			if kept := strings.Contains(force.Store, store); kept != (n > 0) {
				t.Errorf("%s: %d were written to %s, and it is kept in %q", kind.Name, n, store, force.Store)
			}
		}
	}
	t.Logf("%d items of %d types", len(all), len(keytype.All()))
}
