package keytype

import "strings"

// OfItem finds the type of a DynamoDB item by its table, under its full name, and its
// keys. With the keys empty it is the type that the table is there for.
func OfItem(prefix, table, partition, sort string) (*Type, bool) {
	for _, t := range registry {
		if t.Table == "" || t.Within != nil || t.TableName(prefix) != table {
			continue
		}
		if partition == "" || t.holds(partition, sort) {
			return t, true
		}
	}
	return nil, false
}

// holds tells the types of one table apart, by what their keys begin with or by how many parts these have.
func (t *Type) holds(partition, sort string) bool {
	if t.Sort != "" {
		return strings.HasPrefix(partition, t.Partition) && strings.HasPrefix(sort, t.Sort)
	}
	_, ok := t.Split(partition)
	return ok
}

// OfRedisKey finds the type of a key in Redis, under the prefix of the deployment.
func OfRedisKey(prefix, key string) (*Type, bool) {
	key, found := strings.CutPrefix(key, prefix)
	if !found {
		return nil, false
	}
	if _, rest, tagged := strings.Cut(key, "}"); tagged && strings.HasPrefix(key, "{") {
		name, _, _ := strings.Cut(rest, ":")
		if t, hidden := byMark(name); hidden {
			return t, true
		}
		return ByName(name)
	}
	for _, t := range registry {
		if t.Cache != "" && t.cachedAs(key) {
			return t, true
		}
	}
	return nil, false
}

// cachedAs compares the fixed parts of the type's key in Redis.
func (t *Type) cachedAs(key string) bool {
	fixed := strings.Split(t.Cache, "%s")
	for i, part := range fixed {
		at := strings.Index(key, part)
		if at < 0 || i == 0 && at != 0 {
			return false
		}
		key = key[at+len(part):]
	}
	return key == "" || fixed[len(fixed)-1] == ""
}
