package document

import (
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	text := "# nothing\n---\nkind: A\nmetadata: {name: a}\n---\napiVersion: v1\nkind: List\nitems:\n- {kind: B, metadata: {name: b, " +
		"namespace: x}}\n- {kind: C, metadata: {name: c}}\n" +
		"--- # text\napiVersion: v1\nkind: List\nitems: []\n---\n{\n" +
		"---\n{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a}}\n" +
		"---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: a}}\n"
	var got []string
	for _, d := range Split(text) {
		got = append(got, d.Ref())
	}
	if want := []string{"A/default/a", "B/x/b", "C/default/c", "List/default/", "/default/",
		"Gateway/default/a", "Gateway.gateway.networking.k8s.io/default/a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
