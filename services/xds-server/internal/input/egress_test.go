package input_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/replica"
)

func TestEgressHosts(t *testing.T) {
	r := client(t, meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80), meshtest.Service("server", "other", 80))
	for name, tc := range map[string]struct {
		hosts, want []string
	}{
		"one":                             {[]string{"server/public"}, []string{"public@server"}},
		"own namespace":                   {[]string{"./*"}, []string{"own@client"}},
		"all":                             {[]string{"*/*"}, []string{"other@server", "own@client", "public@server"}},
		"none":                            {[]string{"~/*"}, nil},
		"none of what is listed":          {[]string{"*/*", "~/*"}, nil},
		"all but a namespace":             {[]string{"*/*", "~server/*"}, []string{"own@client"}},
		"all but the own namespace":       {[]string{"*/*", "~./*"}, []string{"other@server", "public@server"}},
		"all but a host of one namespace": {[]string{"*/*", "~server/public"}, []string{"other@server", "own@client"}},
		"all but a host of any namespace": {[]string{"*/*", "~/public"}, []string{"other@server", "own@client"}},
		"the same, spelt out":             {[]string{"*/*", "~*/public"}, []string{"other@server", "own@client"}},
		"exclusion of what is not there":  {[]string{"server/*", "~client/public"}, []string{"other@server", "public@server"}},
		"nothing but an exclusion":        {[]string{"~server/*"}, nil},
	} {
		if got := hostnames(r.EgressServices(&networking.IstioEgressListener{Hosts: tc.hosts})); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestExclusionPerListener: what one listener of a Sidecar leaves out another may have.
func TestExclusionPerListener(t *testing.T) {
	r := client(t, meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80), meshtest.Service("server", "other", 80),
		sidecar("client", "s", nil, "*/*", "~server/*"), // one listener
	)
	if got := hostnames(r.Services()); !slices.Equal(got, []string{"own@client"}) {
		t.Errorf("one listener: %q", got)
	}
	r = client(t, meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80), meshtest.Service("server", "other", 80),
		meshtest.Config(replica.KindSidecar, "client", "s", &networking.Sidecar{Egress: []*networking.IstioEgressListener{
			{Hosts: []string{"*/*", "~server/*"}, Port: &networking.SidecarPort{Number: 80}}, {Hosts: []string{"server/other"}},
		}}))
	if got := hostnames(r.Services()); !slices.Equal(got, []string{"other@server", "own@client"}) {
		t.Errorf("two listeners: %q", got)
	}
}

func TestAdmitsHost(t *testing.T) {
	r := client(t)
	for _, tc := range []struct {
		hosts           []string
		namespace, host string
		want            bool
	}{
		{[]string{"*/*"}, "any", "a.example.com", true},
		{[]string{"./*"}, "client", "a.example.com", true},
		{[]string{"./*"}, "other", "a.example.com", false},
		{[]string{"other/*.example.com"}, "other", "a.example.com", true},
		{[]string{"other/*.example.com"}, "other", "*.a.example.com", true},
		{[]string{"other/*.example.com"}, "other", "example.com", false},
		{[]string{"other/a.example.com"}, "other", "b.example.com", false},
		{[]string{"*/*", "~other/*.example.com"}, "other", "a.example.com", false},
		{[]string{"*/*", "~other/*.example.com"}, "client", "a.example.com", true},
	} {
		if got := r.AdmitsHost(&networking.IstioEgressListener{Hosts: tc.hosts}, tc.namespace, tc.host); got != tc.want {
			t.Errorf("%v admits %s of %s: %v", tc.hosts, tc.host, tc.namespace, got)
		}
	}
	if !r.AdmitsHost(nil, "any", "a.example.com") {
		t.Error("without a Sidecar a host is held back")
	}
}

// TestInheritedEgress: a Sidecar that says nothing of egress has that of its namespace's default, or else of the mesh's.
func TestInheritedEgress(t *testing.T) {
	mine := map[string]string{"app": "c"}
	only := func(namespace, name string, selector map[string]string) *configv1.Resource {
		s := &networking.Sidecar{InboundConnectionPool: &networking.ConnectionPoolSettings{}}
		if selector != nil {
			s.WorkloadSelector = &networking.WorkloadSelector{Labels: selector}
		}
		return meshtest.Config(replica.KindSidecar, namespace, name, s)
	}
	services := []*configv1.Resource{meshtest.Service("client", "own", 80), meshtest.Service("server", "public", 80)}
	everything := []string{"own@client", "public@server"}
	for name, tc := range map[string]struct {
		sidecars []*configv1.Resource
		want     []string
	}{
		"from nobody":              {[]*configv1.Resource{only("client", "s", mine)}, everything},
		"from the namespace":       {[]*configv1.Resource{only("client", "s", mine), sidecar("client", "d", nil, "./*")}, []string{"own@client"}},
		"from the mesh":            {[]*configv1.Resource{only("client", "s", mine), sidecar("root", "d", nil, "server/*")}, []string{"public@server"}},
		"namespace before mesh":    {[]*configv1.Resource{only("client", "s", mine), sidecar("client", "d", nil, "./*"), sidecar("root", "d", nil, "server/*")}, []string{"own@client"}},
		"past a namespace's":       {[]*configv1.Resource{only("client", "s", mine), only("client", "d", nil), sidecar("root", "d", nil, "server/*")}, []string{"public@server"}},
		"not from another's":       {[]*configv1.Resource{only("client", "s", mine), sidecar("client", "z", map[string]string{"app": "z"}, "./*")}, everything},
		"default without egress":   {[]*configv1.Resource{only("client", "d", nil), sidecar("root", "d", nil, "server/*")}, []string{"public@server"}},
		"own egress is not merged": {[]*configv1.Resource{sidecar("client", "s", mine, "server/*"), sidecar("client", "d", nil, "./*")}, []string{"public@server"}},
	} {
		t.Run(name, func(t *testing.T) {
			resources := slices.Concat(services, tc.sidecars)
			if got := hostnames(client(t, resources...).Services()); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
