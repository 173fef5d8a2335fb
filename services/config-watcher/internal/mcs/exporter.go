package mcs

import (
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// exportsPerSecond bounds the exports that are created, exportsAtOnce those in one go.
	exportsPerSecond = 20
	exportsAtOnce    = 50
	// createWithin bounds the request for one export, retryAfter is the pause after one that failed, and idle the
	// longest time between two rounds.
	createWithin = 10 * time.Second
	retryAfter   = 30 * time.Second
	idle         = time.Hour
)

// ExporterConfig are the parts of an Exporter. All fields are required.
type ExporterConfig struct {
	API *rest.Config
	// Source is the name of the source that reads the API server.
	Source string
	Table  *Table
	Clock  clock.Clock
	Log    *slog.Logger
}

// Exporter creates a ServiceExport for each Service of the own cluster that has none, once: who deletes one keeps it
// deleted while Run runs. The export is the Service's, and ends with it.
type Exporter struct {
	cfg    ExporterConfig
	client dynamic.Interface
}

// NewExporter returns an exporter with a client of its own, so that exports do not delay the reading of objects.
func NewExporter(cfg ExporterConfig) (*Exporter, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(exportsPerSecond, exportsAtOnce)
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	return &Exporter{cfg: cfg, client: client}, nil
}

// Run creates exports until ctx ends. It is for one replica at a time.
func (e *Exporter) Run(ctx context.Context) {
	// done are the Services, by UID, that have or have had an export.
	done := map[string]bool{}
	clock.Rounds(ctx, e.cfg.Clock, e.cfg.Table.wake, func() time.Time {
		now := map[string]bool{}
		var failed error
		for _, c := range e.cfg.Table.candidates(e.cfg.Source) {
			if !c.exported && !done[c.service.UID] {
				if err := e.create(ctx, c.service); err != nil {
					failed = err
					continue
				}
			}
			now[c.service.UID] = true
		}
		if done = now; failed != nil && ctx.Err() == nil {
			e.cfg.Log.Warn("a ServiceExport cannot be created; it is tried again", "error", failed,
				"remedy", "install the CustomResourceDefinitions of the Multi-Cluster Services API, and let config-watcher's service account create "+
					"serviceexports.multicluster.x-k8s.io, or give --mcs-auto-export=false")
			return e.cfg.Clock.Now().Add(retryAfter)
		}
		return e.cfg.Clock.Now().Add(idle)
	})
}

// create makes the export of a Service in the first version of the kind that the API server has.
func (e *Exporter) create(ctx context.Context, service *object.Object) (err error) {
	ctx, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	kind := kinds.Find(kinds.GroupMCS, kinds.ServiceExport)
	for _, version := range kind.Versions {
		gv := schema.GroupVersion{Group: kind.Group, Version: version}
		export := &unstructured.Unstructured{}
		export.SetAPIVersion(gv.String())
		export.SetKind(kind.Name)
		export.SetNamespace(service.Key.Namespace)
		export.SetName(service.Key.Name)
		export.SetOwnerReferences([]metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Service", Name: service.Key.Name, UID: k8stypes.UID(service.UID)},
		})
		_, err = e.client.Resource(gv.WithResource("serviceexports")).Namespace(service.Key.Namespace).Create(ctx, export, metav1.CreateOptions{})
		switch {
		case err == nil:
			e.cfg.Log.Info("a Service is exported", "service", service.Key.Namespace+"/"+service.Key.Name)
			return nil
		case apierrors.IsAlreadyExists(err):
			return nil
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return err
}
