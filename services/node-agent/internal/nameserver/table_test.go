package nameserver

import (
	"slices"
	"testing"

	"github.com/miekg/dns"

	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
)

// names is a name table for a workload of the namespace "apps".
func names() *ndsv1.NameTable {
	service := func(short, namespace string, ips ...string) *ndsv1.NameTable_NameInfo {
		return &ndsv1.NameTable_NameInfo{Registry: kubernetes, Shortname: short, Namespace: namespace, Ips: ips}
	}
	outside := func(ips ...string) *ndsv1.NameTable_NameInfo {
		return &ndsv1.NameTable_NameInfo{Registry: "External", Ips: ips}
	}
	return &ndsv1.NameTable{Table: map[string]*ndsv1.NameTable_NameInfo{
		"server.apps.svc.cluster.local":       service("server", "apps", "10.0.0.1"),
		"other.else.svc.cluster.local":        service("other", "else", "10.0.0.2", "fd00::2"),
		"db.apps.svc.cluster.local":           service("db", "apps", "10.0.0.3", "10.0.0.4"),
		"db-0.db.apps.svc.cluster.local":      service("db-0.db", "apps", "10.0.0.3"),
		"www.example.com":                     outside("240.240.0.1"),
		"*.example.com":                       outside("240.240.0.2"),
		"*.deep.example.com":                  outside("240.240.0.3"),
		"six.example.org":                     outside("fd00::6"),
		"server.apps":                         outside("240.240.0.4"),
		"Mixed.Example.NET":                   outside("240.240.0.5"),
		"broken.example.org":                  outside("not an address"),
		"mapped.example.org":                  outside("::ffff:10.0.0.9"),
		"svc.with.a.dot.apps.svc.other.local": service("odd", "", "10.0.0.5"),
	}}
}

func TestTableAnswers(t *testing.T) {
	table := newTable(names(), "apps", "apps.svc.cluster.local")
	for _, tc := range []struct {
		name string
		kind uint16
		// want are addresses, after "<alias> " where there is one; nil where the table does not have the name.
		want []string
	}{
		{"server.apps.svc.cluster.local.", dns.TypeA, []string{"10.0.0.1"}},
		{"SERVER.apps.svc.Cluster.local.", dns.TypeA, []string{"10.0.0.1"}},
		{"server.", dns.TypeA, []string{"10.0.0.1"}},
		{"server.apps.svc.", dns.TypeA, []string{"10.0.0.1"}},
		{"server.apps.", dns.TypeA, []string{"240.240.0.4"}}, // a name of its own
		{"other.", dns.TypeA, nil},                           // of another namespace
		{"other.else.", dns.TypeA, []string{"10.0.0.2"}},
		{"other.else.", dns.TypeAAAA, []string{"fd00::2"}},
		{"other.else.svc.", dns.TypeA, []string{"10.0.0.2"}},
		{"other.else.apps.svc.cluster.local.", dns.TypeA, []string{"other.else. 10.0.0.2"}}, // search domain appended
		{"server.apps.svc.cluster.local.", dns.TypeAAAA, []string{}},
		{"db-0.db.", dns.TypeA, []string{"10.0.0.3"}},
		{"db-0.db.apps.", dns.TypeA, []string{"10.0.0.3"}},
		{"www.example.com.", dns.TypeA, []string{"240.240.0.1"}},
		{"www.example.com.apps.svc.cluster.local.", dns.TypeA, []string{"www.example.com. 240.240.0.1"}},
		{"a.example.com.", dns.TypeA, []string{"240.240.0.2"}},
		{"a.b.example.com.", dns.TypeA, []string{"240.240.0.2"}},
		{"a.deep.example.com.", dns.TypeA, []string{"240.240.0.3"}},
		{"a.example.com.apps.svc.cluster.local.", dns.TypeA, []string{"a.example.com. 240.240.0.2"}},
		{"example.com.", dns.TypeA, nil},
		{"six.example.org.", dns.TypeAAAA, []string{"fd00::6"}},
		{"six.example.org.", dns.TypeA, []string{}},
		{"mixed.example.net.", dns.TypeA, []string{"240.240.0.5"}},
		{"mapped.example.org.", dns.TypeA, []string{"10.0.0.9"}},
		{"broken.example.org.", dns.TypeA, []string{}},
		{"unknown.example.org.", dns.TypeA, nil},
		{"apps.svc.cluster.local.", dns.TypeA, nil},
		{".", dns.TypeA, nil},
		{"", dns.TypeA, nil},
	} {
		records, found := table.answer(dns.Question{Name: tc.name, Qtype: tc.kind, Qclass: dns.ClassINET}, 0)
		if found != (tc.want != nil) {
			t.Errorf("%q: found %v", tc.name, found)
			continue
		}
		var got []string
		prefix, owner := "", tc.name
		for _, r := range records {
			if r.Header().Name != owner || r.Header().Ttl != ttl {
				t.Errorf("%q: a record %v of %q", tc.name, r, owner)
			}
			switch r := r.(type) {
			case *dns.CNAME:
				prefix, owner = r.Target+" ", r.Target
			case *dns.A:
				got = append(got, prefix+r.A.String())
			case *dns.AAAA:
				got = append(got, prefix+r.AAAA.String())
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestFirstAddressTakesTurns(t *testing.T) {
	table := newTable(names(), "apps", "")
	first := map[string]int{}
	for turn := range uint32(10) {
		records, _ := table.answer(dns.Question{Name: "db.", Qtype: dns.TypeA}, turn)
		if len(records) != 2 {
			t.Fatal(records)
		}
		first[records[0].(*dns.A).A.String()]++
	}
	if first["10.0.0.3"] != 5 || first["10.0.0.4"] != 5 {
		t.Error(first)
	}
}

func FuzzTable(f *testing.F) {
	table := newTable(names(), "apps", "apps.svc.cluster.local")
	for _, name := range []string{"", ".", "..", "*.", "*.example.com.", "a..b.", ".apps.svc.cluster.local.", "server"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		records, found := table.answer(dns.Question{Name: name, Qtype: dns.TypeA}, 7)
		if !found && len(records) > 0 {
			t.Error("records of a name that is not there")
		}
	})
}
