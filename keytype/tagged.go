package keytype

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// Tagged is what a stored key is called in Redis: the prefix, a hash tag, and the
// type's name before the key itself. Keys of one tag share a slot of a Cluster;
// the tag may be any text and stands there as a hash.
func (t *Type) Tagged(prefix, tag, key string) string {
	sum := sha256.Sum256([]byte(tag))
	return prefix + "{" + base64.RawURLEncoding.EncodeToString(sum[:9]) + "}" + t.Name + ":" + key
}

// SplitTagged undoes Tagged and Key: it returns the type and the parts of a key in
// Redis, or false where it is not one that Tagged built with the prefix.
func SplitTagged(prefix, stored string) (t *Type, parts []string, ok bool) {
	rest, found := strings.CutPrefix(stored, prefix+"{")
	tag, rest, closed := strings.Cut(rest, "}")
	name, key, named := strings.Cut(rest, ":")
	t, known := ByName(name)
	if !found || !closed || !named || !known || len(tag) != base64.RawURLEncoding.EncodedLen(9) {
		return nil, nil, false
	}
	parts, ok = t.Split(key)
	return t, parts, ok
}
