// Package status tells the owner of an object of Istio's kinds what has become of it: conditions Accepted and
// Programmed, for Gateways also which servers are served, in the object's `status` and in `fairlead config status`.
//
// Tracker.Run evaluates the objects of all sources: the pipeline submits each revision's changes, and the aggregate,
// the sources, package background, the credentials and the fleet are asked for the rest. A round looks at what may have
// changed (due.go). Each source that can be written to has a Dispatcher, which keeps the newest status of each object
// and hands it to a Writer: StoreWriter, or the Writer of package status/kubernetes.
// docs/adr/0053-status-of-every-object.md has the rules, and
// docs/adr/0114-rounds-of-statuses-look-at-what-has-changed.md those of rounds.
package status

import (
	"context"
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Types of conditions.
const (
	// Accepted holds if the newest version of the object is valid and part of the mesh.
	Accepted = "Accepted"
	// ResolvedRefs holds if every credential of a Gateway is there, or the keys of every issuer of a
	// RequestAuthentication.
	ResolvedRefs = "ResolvedRefs"
	// Programmed holds if every proxy that uses the object has acknowledged its newest version.
	Programmed = "Programmed"
	// Healthy holds if the agent of a WorkloadEntry's proxy says so. Only those that follow their health have it.
	Healthy = "Healthy"
)

// Reasons of conditions, and of servers.
const (
	reasonAccepted   = "Accepted"
	reasonInvalid    = "Invalid"
	reasonOverridden = "Overridden"
	reasonProgrammed = "Programmed"
	reasonNoProxy    = "NoProxy"
	reasonPending    = "Pending"
	reasonUnreported = "NoReport"
	reasonRejected   = "Rejected"
	reasonConflict   = "PortConflict"
	reasonCredential = "CredentialMissing"
	reasonResolved   = "Resolved"
	reasonKeys       = "KeysMissing"
	reasonStaleKeys  = "KeysStale"
	reasonHealthy    = "Healthy"
	reasonUnhealthy  = "Unhealthy"
)

// Condition is one condition of an object.
type Condition struct {
	Type  string
	Holds bool
	// Unknown is set if nobody can tell whether it holds.
	Unknown         bool
	Reason, Message string
	// KeepTrue is set if a written condition of the type that holds for the same generation stays as it is: a version
	// that every proxy has acknowledged stays programmed when further proxies connect.
	KeepTrue bool
}

// healthCondition is the condition Healthy.
func healthCondition(h *object.Health) Condition {
	c := Condition{Type: Healthy, Holds: h.Well, Reason: reasonUnhealthy, Message: h.Message}
	if h.Well {
		c.Reason = reasonHealthy
	}
	return c
}

// Text is the condition's status as clients read it.
func (c Condition) Text() string {
	switch {
	case c.Unknown:
		return conditionUnknown
	case c.Holds:
		return conditionTrue
	}
	return conditionFalse
}

// Status is the status of one version of an object. It is immutable.
type Status struct {
	// Generation is the generation that the conditions are about; 0 if the source does not count them.
	Generation int64
	Conditions []Condition
	// ConditionsAlone is set for kinds whose status has no observedGeneration beside the conditions.
	ConditionsAlone bool
	// Servers are those of a Gateway; nil for other kinds.
	Servers []Server
	// Findings are the codes of the findings about the object, for status.validationMessages.
	Findings []string
	// LoadBalancer are the addresses of an Ingress, which has no conditions; nil for other kinds.
	LoadBalancer []networkingv1.IngressLoadBalancerIngress
	// API is what is written of an object of the Gateway API, of which Conditions are a summary; nil for other kinds,
	// and for an object of which nothing is written.
	API *API
}

// Get returns the condition of a type; the zero value if there is none.
func (s *Status) Get(conditionType string) Condition {
	for _, c := range s.Conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return Condition{}
}

// Target is the object that a status is written to.
type Target struct {
	Key        object.Key
	APIVersion string
	// UID tells an object from another one of the same key that was there before or comes later; empty if the source
	// has none.
	UID        string
	Generation int64
}

// Errors of writers that ask for no further attempt.
var (
	// ErrGone means that the object is not there any more, or is another one of the same key.
	ErrGone = errors.New("the object is gone")
	// ErrOutdated means that the object has a newer version, whose status comes later.
	ErrOutdated = errors.New("the object has a newer version")
)

// Writer writes statuses back to a source. Write changes nothing if the object has the status already, waits for the
// writer's rate otherwise, and reports whether it has written. Conditions and fields of others stay.
type Writer interface {
	Write(ctx context.Context, to Target, s *Status) (written bool, err error)
}

// HasStatus reports whether objects of the kind have a status.
func HasStatus(k object.Key) bool {
	switch k.Group {
	case kinds.GroupNetworking, kinds.GroupSecurity, kinds.GroupTelemetry, kinds.GroupExtensions:
		return true
	case contract.GroupGatewayAPI:
		return k.Kind != gatewayapi.ReferenceGrant
	}
	return false
}

// WriteError says that statuses cannot be written.
type WriteError struct {
	// Objects is the number of objects, Object one of them, and Err why its status was not written.
	Objects int
	Object  object.Key
	Err     error
}

// Error implements error.
func (e *WriteError) Error() string {
	return fmt.Sprintf("the status of %d objects cannot be written, such as %s: %v", e.Objects, e.Object, e.Err)
}

// Unwrap returns Err.
func (e *WriteError) Unwrap() error { return e.Err }
