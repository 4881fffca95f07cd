package keytype

// InForce is what a type's promise amounts to on this node as it is set up now.
type InForce struct {
	Store      string
	Durability string
	Note       string
}

// Mode is the set-up that decides which promise is in force.
type Mode struct {
	DynamoDB bool // durable types live in DynamoDB, else in this node's file
}

// Available reports whether the type can be used in this mode.
func (m Mode) Available(t *Type) bool {
	return !m.DynamoDB || t.Durability == Ephemeral || t.Table != ""
}

// InForce says what holds for the type in this mode.
func (m Mode) InForce(t *Type) InForce {
	switch {
	case t.Durability == Ephemeral:
		return InForce{Store: "memory", Durability: "ephemeral, per process", Note: "each process counts for itself; lost at a restart"}
	case !m.DynamoDB:
		return InForce{Store: "bbolt", Durability: "durable on this node only", Note: "one file in the data folder; an acknowledged write is on disk"}
	case !m.Available(t):
		return InForce{Store: "none", Durability: "none", Note: "not available with DynamoDB in this version"}
	default:
		return InForce{Store: "dynamodb", Durability: string(t.Durability), Note: "shared by all nodes on these tables"}
	}
}
