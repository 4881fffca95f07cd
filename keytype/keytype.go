// Package keytype decides what every stored key is called, how durable it is
// and what happens when its store fails.
//
// Every key the service writes belongs to exactly one [Type]. No other package
// spells a table, bucket or key: they ask the type for it, so the registry
// cannot drift from what is stored.
package keytype

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Durability says what survives the loss of a process or of a cache.
type Durability string

// The durabilities a type may promise.
const (
	Durable       Durability = "durable"        // an acknowledged write survives any one failure of the store
	DurableFenced Durability = "durable_fenced" // durable, and a stale writer is refused
	BestEffort    Durability = "best_effort"    // may be skipped under load or failure
	Ephemeral     Durability = "ephemeral"      // lost with its store
)

// A Type is one kind of key, with everything an operator asks about it.
// Types are package variables and never change after start.
type Type struct {
	Name           string
	Owner          string // the team-facing part of the service that writes it
	Store          string // where it lives in production mode
	Durability     Durability
	Consistency    string
	OnStoreFailure string
	IfLost         string
	TTL            string   // when the key may go
	Parts          []string // what its key is built from, in order
	Table          string   // DynamoDB table without the prefix, empty where it is not kept there
	Partition      string   // where the table has a sort key: what the partition key begins with, before the first part
	Sort           string   // and what the sort key begins with, before the second part if there is one
	Within         *Type    // the type whose DynamoDB item it shares, nil where it has its own
	Mark           string   // its name in a key in Redis that a Veil hides, empty where there are none
	Cache          string   // its key in Redis where it is cached there, a %s for each part; parts in braces choose the slot
}

// Key builds the stored key from its parts, each as "<byte length>:<bytes>", so
// that no two part lists can meet, whatever characters the parts contain.
// It panics when the number of parts is not the type's own.
func (t *Type) Key(parts ...string) string {
	if len(parts) != len(t.Parts) {
		panic(fmt.Sprintf("keytype: %s has the parts %v, got %d", t.Name, t.Parts, len(parts)))
	}
	return join(parts)
}

// Prefix builds the prefix that exactly the keys beginning with these parts share.
func (t *Type) Prefix(parts ...string) string {
	if len(parts) > len(t.Parts) {
		panic(fmt.Sprintf("keytype: %s has the parts %v, got %d", t.Name, t.Parts, len(parts)))
	}
	return join(parts)
}

// ItemKey builds the keys of an item in a table with a sort key. The first part stands
// in the partition key alone, and a second one, an id of this service's own making, in the
// sort key alone: no two items can meet, and those of a partition are in order of their ids.
func (t *Type) ItemKey(parts ...string) (partition, sort string) {
	if len(parts) != len(t.Parts) || t.Sort == "" {
		panic(fmt.Sprintf("keytype: %s has the parts %v and the sort key %q, got %d", t.Name, t.Parts, t.Sort, len(parts)))
	}
	return t.Partition + parts[0], t.Sort + strings.Join(parts[1:], "")
}

// Bucket names the type's bucket in the embedded and in-memory stores.
func (t *Type) Bucket() string { return t.Name }

// TableName names the type's DynamoDB table.
func (t *Type) TableName(prefix string) string { return prefix + t.Table }

// Pattern describes the stored key for people, for example "<n>:{tenant}<n>:{resource}".
func (t *Type) Pattern() string {
	if len(t.Parts) == 0 {
		return t.Cache // there is one such key
	}
	var b strings.Builder
	for _, p := range t.Parts {
		fmt.Fprintf(&b, "<n>:{%s}", p)
	}
	return b.String()
}

// Runbook is the path, in the repository, of the page to open when its store fails.
func (t *Type) Runbook() string { return "docs/runbooks/" + t.Store + ".md" }

// Split undoes Key: it returns the parts, or false where the key is not one that Key built.
func (t *Type) Split(key string) ([]string, bool) {
	var parts []string
	for key != "" {
		digits, rest, found := strings.Cut(key, ":")
		n, err := strconv.Atoi(digits)
		if !found || err != nil || n < 0 || n > len(rest) || strconv.Itoa(n) != digits {
			return nil, false
		}
		parts, key = append(parts, rest[:n]), rest[n:]
	}
	return parts, len(parts) == len(t.Parts)
}

// ByName finds a registered type.
func ByName(name string) (*Type, bool) {
	i := slices.IndexFunc(registry, func(t *Type) bool { return t.Name == name })
	if i < 0 {
		return nil, false
	}
	return registry[i], true
}

// ByTable finds the type that a DynamoDB table, under its full name, is there for. Others
// may share the table.
func ByTable(prefix, table string) (*Type, bool) {
	i := slices.IndexFunc(registry, func(t *Type) bool { return t.Table != "" && t.TableName(prefix) == table })
	if i < 0 {
		return nil, false
	}
	return registry[i], true
}

// All returns the registered types in the order in which they are shown.
func All() []*Type { return slices.Clone(registry) }

func join(parts []string) string {
	var room [256]byte // on the stack; a longer key gets its own
	b := room[:0]
	for _, p := range parts {
		b = strconv.AppendInt(b, int64(len(p)), 10)
		b = append(b, ':')
		b = append(b, p...)
	}
	return string(b)
}
