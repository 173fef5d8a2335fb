package gateways

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	q := newFair()
	for _, name := range []string{"1", "2", "3"} {
		q.Push(types.NamespacedName{Namespace: "many", Name: name})
	}
	q.Push(types.NamespacedName{Namespace: "few", Name: "1"})
	for i, want := range []string{"many/1", "few/1", "many/2", "many/3"} {
		if got := q.Len(); got != 4-i {
			t.Errorf("%d wait, want %d", got, 4-i)
		}
		if got := q.Pop().String(); got != want {
			t.Errorf("%d is %s, want %s", i, got, want)
		}
	}
	q.Push(types.NamespacedName{Namespace: "many", Name: "4"})
	if got := q.Pop().String(); got != "many/4" {
		t.Errorf("got %s after all had gone", got)
	}
}
