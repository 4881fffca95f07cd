package keytype

import (
	"fmt"
	"strings"
)

// CacheKey is the type's key in Redis, behind the prefix of the deployment. Its
// parts are tags and ids that the service made itself, so none holds a brace, which
// would choose another slot. It panics where the type is not cached, or the number of parts is not its own.
func (t *Type) CacheKey(prefix string, parts ...string) string {
	if t.Cache == "" || len(parts) != len(t.Parts) {
		panic(fmt.Sprintf("keytype: %s is cached as %q by the parts %v, got %d", t.Name, t.Cache, t.Parts, len(parts)))
	}
	var b strings.Builder
	b.WriteString(prefix)
	rest := t.Cache
	for _, part := range parts {
		before, after, _ := strings.Cut(rest, "%s")
		b.WriteString(before)
		b.WriteString(part)
		rest = after
	}
	b.WriteString(rest)
	return b.String()
}
