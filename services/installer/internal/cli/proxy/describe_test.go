package proxy_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestAServiceThatIsNotThereIsNamedWhereItIs(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(nil, nil)
	name := clitest.File(t, "{apiVersion: v1, kind: Service, metadata: {name: reviews, namespace: default}}\n---\n"+
		"{apiVersion: v1, kind: Service, metadata: {name: ratings, namespace: shop}}\n")
	if out, _, err := m.Run("", "config", "apply", "-f", name); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	for service, want := range map[string]string{
		"revews":  `no Service revews in namespace default; did you mean "reviews"?`,
		"ratings": "no Service ratings in namespace default; there is one in shop: name it with -n",
		"nothing": "no Service nothing in namespace default; `fairlead config get",
	} {
		if _, _, err := m.Run("", "describe", "svc", service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", service, err)
		}
	}
}
