package apply

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// Finding is what is wrong with one object of an installation.
type Finding struct {
	inventory.Entry
	Problem string
}

// Verify compares an inventory with the cluster: whether each object is there, still the installation's, and ready.
func Verify(ctx context.Context, c *cluster.Client, rec *inventory.Record) ([]Finding, error) {
	problems, failed := make([]string, len(rec.Objects)), make([]error, len(rec.Objects))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, e := range rec.Objects {
		g.Go(func() error {
			problems[i], failed[i] = problem(ctx, c, e)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	var out []Finding
	for i, text := range problems {
		if text != "" {
			out = append(out, Finding{rec.Objects[i], text})
		}
	}
	return out, nil
}

// sameAgain is the remedy for what an installation lacks. One without the file is of another profile, and prunes.
const sameAgain = "install again with the same file and settings"

func problem(ctx context.Context, c *cluster.Client, e inventory.Entry) (string, error) {
	live, err := c.Get(ctx, e.ID)
	switch {
	case err != nil:
		return "", err
	case live == nil:
		return "it is not there; " + sameAgain, nil
	case live.GetDeletionTimestamp() != nil:
		return "it is being deleted", nil
	case e.Adopted:
		return "", nil
	}
	// A definition of a mesh is often also applied by another, such as the charts of Istio, with the same content.
	shared := e.IsCRD() && cluster.OwnedFields(live) != ""
	if by := owner(live); by != "" && !shared {
		return "it is not of this installation any more: " + by, nil
	}
	if n, found, _ := unstructured.NestedInt64(live.Object, "spec", "replicas"); found && n < e.Replicas {
		return fmt.Sprintf("it is scaled to %d Pods, where the installation asks for %d at least; %s", n, e.Replicas, sameAgain), nil
	}
	if service, ok := discovery(live); ok {
		switch there, err := c.Get(ctx, service); {
		case err != nil:
			return "", err
		case there == nil:
			return fmt.Sprintf("its proxies get their configuration from %s (--discovery-address), which is not there; %s", service, sameAgain), nil
		}
	}
	if wait.Waits(e.ID) && !wait.Of(live).Ready {
		return wait.Explain(ctx, c, e.ID), nil
	}
	return "", nil
}
