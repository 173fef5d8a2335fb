package accounts

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"fairlead.dev/services/ca/internal/holders"
)

func TestDeletedPodsAreToldOnceTheAPIServerConfirmsIt(t *testing.T) {
	r, client := newRegistry(t, object("Pod", "shop", "web-0", "p0"), object("Pod", "shop", "web-1", "other"), object("Pod", "shop", "web-2", "p2"))
	with := []holders.Pod{{UID: "p0", Name: "shop/web-0"}, {UID: "p1", Name: "shop/web-1"}, {UID: "p2", Name: "shop/web-2"},
		{UID: "p3", Name: "shop/web-3"}}
	if got := r.deleted(t.Context(), with); got != nil {
		t.Errorf("before the Pods were read: %v", got)
	}
	run(t, r.Run, r.Ready)
	if got := r.deleted(t.Context(), with); !slices.Equal(got, []string{"p1", "p3"}) {
		t.Errorf("got %v", got)
	}
	// The API server does not answer: nobody is told to be gone.
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if got := r.deleted(t.Context(), with); got != nil {
		t.Errorf("without an answer: %v", got)
	}
}
