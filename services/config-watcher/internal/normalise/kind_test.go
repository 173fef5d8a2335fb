package normalise

import (
	"testing"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// TestEveryKindHasRules: a kind that is read has a line in the table, or is known to make no part of the mesh.
func TestEveryKindHasRules(t *testing.T) {
	elsewhere := map[kindName]string{
		{"", "Secret"}:                           "package credential takes Secrets out",
		{"", "ServiceAccount"}:                   "no part of the mesh",
		{kinds.GroupNetworking, "WorkloadGroup"}: "package registration makes WorkloadEntries of it",
		{kinds.GroupMCS, kinds.ServiceExport}:    "package mcs says of Services what it says",
		{kinds.GroupMCS, kinds.ServiceImport}:    "package mcs says of Services what it says",
	}
	table := newKinds()
	// By packages jwks, gatewayname, remote and credential; no user writes one.
	for _, kind := range []string{KindJwks, KindGatewayName, kindClusterAway, object.KindCredentialState} {
		made := kindName{kinds.GroupFairlead, kind}
		if table[made] == nil {
			t.Errorf("%v has no rules", made)
		}
		delete(table, made)
	}
	for _, k := range kinds.All() {
		name := kindName{k.Group, k.Name}
		if why := elsewhere[name]; (table[name] == nil) != (why != "") {
			t.Errorf("%v has rules: %v, want that unless there is a reason: %q", name, table[name] != nil, why)
		}
		delete(table, name)
	}
	for name := range table {
		t.Errorf("%v has rules, and is not read", name)
	}
}
