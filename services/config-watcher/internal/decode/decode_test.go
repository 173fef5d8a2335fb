package decode

import (
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// TestStrict: what does not fit the schema is a problem with its place, and what it hides is none.
func TestStrict(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string // problems, all of line 1
	}{
		"fits":    {"{hosts: [a], http: [{timeout: 10ms}]}", nil},
		"unknown": {"{hosts: [a], htp: []}", []string{`spec.htp: unknown field "htp"; did you mean "http"?`}},
		"beside the schema": {"{zzz: 1}",
			[]string{`spec.zzz: unknown field "zzz"; remove it, or use one of hosts, gateways, http, tls, tcp, exportTo`}},
		"wrong type": {"{hosts: a}",
			[]string{`spec.hosts: "a": expected a list, found a string; write its items as "- ..." below it`}},
		"empty item": {"{hosts: [null]}", []string{"spec.hosts[0]: item is empty; remove it or fill it in"}},
		"no duration": {"{http: [{timeout: 1}]}",
			[]string{`spec.http[0].timeout: 1: expected a duration, found a number; write it with its unit, like "0.5s"`}},
		"out of range": {"{http: [{match: [{port: -1}]}]}",
			[]string{"spec.http[0].match[0].port: -1: out of range 0 to 4294967295; use a value within it"}},
		"two of one choice": {"{http: [{match: [{uri: {exact: a, prefix: b}}]}]}",
			[]string{"spec.http[0].match[0].uri.prefix: cannot be set together with exact; keep one of them"}},
		"two mistakes": {"{hosts: 1, exportTo: 2}",
			[]string{`spec.exportTo: 2: expected a list, found a number; write its items as "- ..." below it`,
				`spec.hosts: 1: expected a list, found a number; write its items as "- ..." below it`}},
		"no object": {"[]", []string{"spec: []: expected an object, found a list; write its fields below it"}},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := manifest.Parse("f", []byte("spec: "+c.spec))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			d := Decoder{Verdict: &Verdict{Doc: docs[0]}}
			d.Spec("spec", "VirtualService", docs[0].Tree["spec"], &networking.VirtualService{})
			var got []string
			for _, p := range d.Problems {
				got = append(got, strings.TrimPrefix(p.Error(), "f:1: "))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestRefusedFieldsAreLeftOut: the rest is decoded, items of lists keep their places, and problems that only follow
// from a refused field are dropped.
func TestRefusedFieldsAreLeftOut(t *testing.T) {
	docs, _ := manifest.Parse("f", []byte("spec: {hosts: [5, b], gatways: [g]}"))
	d := Decoder{Verdict: &Verdict{Doc: docs[0]}}
	vs := &networking.VirtualService{}
	if !d.Spec("spec", "VirtualService", docs[0].Tree["spec"], vs) || !slices.Equal(vs.Hosts, []string{"", "b"}) {
		t.Errorf("hosts %q, problems %v", vs.Hosts, d.Problems)
	}
	before := len(d.Problems)
	d.Fail("spec.hosts[0]", nil, "follows", "")
	d.Fail("spec.gateways[0]", nil, "follows from the name that is meant", "")
	if len(d.Problems) != before {
		t.Errorf("problems %v", d.Problems[before:])
	}
	if d.Fail("spec.exportTo", nil, "is another", ""); len(d.Problems) == before {
		t.Error("another problem is dropped")
	}
}

// TestBody: a Go type's unknown fields are found by its JSON names.
func TestBody(t *testing.T) {
	docs, _ := manifest.Parse("f", []byte("spec: {ports: [{prt: 80, port: 81}]}"))
	d := Decoder{Verdict: &Verdict{Doc: docs[0]}}
	service := &corev1.Service{}
	if !d.Body("Service", service) || service.Spec.Ports[0].Port != 81 || len(d.Problems) != 1 ||
		d.Problems[0].Error() != `f:1: spec.ports[0].prt: unknown field "prt"; did you mean "port"?` {
		t.Errorf("%v, problems %v", service.Spec, d.Problems)
	}
}
