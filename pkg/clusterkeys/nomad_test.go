package clusterkeys_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/testkit"
)

const someRules = `
- {namespace: default, job: web, task: server, account: shop/web}
- {namespace: default, job: "*", task: "*", account: shop/rest}
`

func TestRulesOfNomadAreReadAsTheyAreWritten(t *testing.T) {
	data := east(t)
	data[clusterkeys.NomadKey] = someRules
	delete(data, clusterkeys.IssuerKey)
	c := testkit.Must(clusterkeys.Parse(data))(t)
	want := []clusterkeys.NomadRule{{"default", "web", "server", "shop/web"}, {"default", "*", "*", "shop/rest"}}
	if !c.OfNomad() || !slices.Equal(c.Nomad, want) {
		t.Errorf("rules are %+v", c.Nomad)
	}
	read := testkit.Must(clusterkeys.Read(testkit.Must(clusterkeys.Write([]clusterkeys.Cluster{c}))(t)))(t)
	if len(read) != 1 || !maps.Equal(read[0].Data(), c.Data()) || !slices.Equal(read[0].Nomad, want) {
		t.Errorf("the document has %+v of %+v", read, c)
	}
	again := testkit.Must(clusterkeys.Parse(c.Data()))(t)
	if !slices.Equal(again.Nomad, want) {
		t.Errorf("the ConfigMap has %+v", again)
	}
	for task, account := range map[string]string{
		"default web server": "web", "default web logs": "rest", "default api server": "rest", "dev web server": "",
	} {
		f := strings.Fields(task)
		if ns, got, ok := c.Account(f[0], f[1], f[2]); got != account || ok != (account != "") || ok && ns != "shop" {
			t.Errorf("%s is %s/%s, %v", task, ns, got, ok)
		}
	}
	if !c.Grants("shop", "rest") || c.Grants("shop", "other") {
		t.Error("another account is granted than those of the rules")
	}
	delete(data, clusterkeys.NomadKey)
	data[clusterkeys.IssuerKey] = "https://east"
	if k := testkit.Must(clusterkeys.Parse(data))(t); k.OfNomad() || !k.Grants("any", "one") {
		t.Error("a cluster of Kubernetes is taken for Nomad's")
	}
}

func TestBrokenRulesOfNomadAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ rules, want string }{
		"none":               {"", "field nomad.yaml: has no rule"},
		"an empty list":      {"[]", "field nomad.yaml: has no rule"},
		"no list":            {"account: shop/web", "is no list of rules"},
		"cut in half":        {`- {namespace: "def`, "field nomad.yaml"},
		"a misspelt field":   {`- {namespace: a, jobs: b, task: c, account: d/e}`, "field jobs not found"},
		"a task left out":    {`- {namespace: a, job: b, account: d/e}`, `rule 1: task is empty; name one, or write "*" for all`},
		"a pattern":          {`- {namespace: a, job: "web-*", task: c, account: d/e}`, `rule 1: job: "web-*" is a pattern`},
		"no account":         {`- {namespace: a, job: b, task: c}`, "rule 1: account"},
		"one without a /":    {`- {namespace: a, job: b, task: c, account: web}`, `account: "web" is not namespace/service-account`},
		"a further segment":  {`- {namespace: a, job: b, task: c, account: shop/web/x}`, "is not namespace/service-account"},
		"a pattern of those": {`- {namespace: a, job: b, task: c, account: "shop/*"}`, "is not namespace/service-account"},
		"two documents":      {someRules + "---\n" + someRules, "more than one document"},
		"too many":           {strings.Repeat("- {namespace: a, job: b, task: c, account: d/e}\n", clusterkeys.MaxNomadRules+1), "more than 1000 rules"},
	} {
		t.Run(name, func(t *testing.T) {
			data := east(t)
			data[clusterkeys.NomadKey] = tc.rules
			c, err := clusterkeys.Parse(data)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %+v, %v; want an error with %q", c.Nomad, err, tc.want)
			}
			if !c.OfNomad() {
				t.Error("with rules that cannot be read it is taken for a cluster of Kubernetes")
			}
		})
	}
}

// Whatever rules say, reading them does not panic, and what is read can be written and read again.
func FuzzParseNomad(f *testing.F) {
	f.Add(someRules)
	f.Add("- &a {namespace: x}\n- *a")
	of := east(f)
	f.Fuzz(func(t *testing.T, text string) {
		data := maps.Clone(of)
		data[clusterkeys.NomadKey] = text
		c, err := clusterkeys.Parse(data)
		if err != nil {
			return
		}
		again, err := clusterkeys.Parse(c.Data())
		if err != nil || !slices.Equal(again.Nomad, c.Nomad) {
			t.Errorf("%+v becomes %+v: %v", c.Nomad, again.Nomad, err)
		}
	})
}
