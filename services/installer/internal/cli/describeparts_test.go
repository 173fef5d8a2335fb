package cli_test

import (
	"strings"
	"testing"
)

func TestAServiceThatIsNotThereIsNamedWhereItIs(t *testing.T) {
	m := newFixture(t)
	m.SetFleet(nil, nil)
	name := file(t, "{apiVersion: v1, kind: Service, metadata: {name: reviews, namespace: default}}\n---\n{apiVersion: v1, kind: Service, "+
		"metadata: {name: ratings, namespace: shop}}\n")
	if out, _, err := m.run("", "config", "apply", "-f", name); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	for service, want := range map[string]string{
		"revews":  `no Service revews in namespace default; did you mean "reviews"?`,
		"ratings": "no Service ratings in namespace default; there is one in shop: name it with -n",
		"nothing": "no Service nothing in namespace default; `fairlead config get",
	} {
		if _, _, err := m.run("", "describe", "svc", service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", service, err)
		}
	}
}
