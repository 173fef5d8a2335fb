package gatewayapi

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Status is the status of one object as far as objects decide it. Exactly one field is set. Conditions have no
// LastTransitionTime. It is immutable: while State returns the same pointer, nothing has changed.
type Status struct {
	Class       *gatewayv1.GatewayClassStatus
	Gateway     *GatewayStatus
	ListenerSet *ListenerSetStatus
	// Route has one entry for each parentRef that refers to a Gateway, ListenerSet or Service of ours.
	Route *gatewayv1.RouteStatus
	// Policy has one entry for each Gateway whose routes lead to a target.
	Policy *gatewayv1.PolicyStatus
}

// Equal reports whether two statuses say the same; nil is equal to nil.
func (s *Status) Equal(o *Status) bool {
	if s == o || s == nil || o == nil {
		return s == o
	}
	return equality.Semantic.DeepEqual(s, o)
}

// GatewayStatus lacks the condition Programmed and the addresses that the Gateway has got.
type GatewayStatus struct {
	Generation int64
	// Controller is that of the Gateway's class.
	Controller gatewayv1.GatewayController
	// Accepted is the status of that condition.
	Accepted   bool
	Conditions []metav1.Condition
	Listeners  []ListenerStatus
	// AttachedListenerSets counts the ListenerSets that are accepted.
	AttachedListenerSets int32
	// Addresses that the Gateway asks for.
	Addresses []gatewayv1.GatewaySpecAddress
	// Service is the one, of another owner, that the addresses name, the first one that exists if they name several; it
	// may not exist. The zero Name if the Gateway gets a deployment of its own, or is of a class without.
	Service Name
	// Unusable are the addresses of type Hostname that the Gateway asks for and that name no Service that is there.
	Unusable []UnusableAddress
	// Remote is true if the Gateway has no workloads in this cluster.
	Remote bool
}

// UnusableAddress is an address that names no Service that is there.
type UnusableAddress struct {
	// Message is "<field>: <reason>; <remedy>".
	Message string
	// Missing is true if it could be the name of a Service.
	Missing bool
}

// ListenerStatus is the status of a listener of a Gateway or ListenerSet without its condition Programmed.
type ListenerStatus struct {
	gatewayv1.ListenerStatus
	// Port of the listener.
	Port uint32
	// Served is true if the listener's workloads serve it. If it is false, Programmed is false for the Reason.
	Served          bool
	Reason, Message string
	// Taken is true if the listener conflicts with one of another Gateway, which is older and has the same workloads.
	// It is part of the resource then, although it is not Served.
	Taken bool
}

// ListenerSetStatus is the status of a ListenerSet whose parent is a Gateway of ours.
type ListenerSetStatus struct {
	Generation int64
	// Gateway is the parent.
	Gateway    Name
	Controller gatewayv1.GatewayController
	// Accepted is the status of that condition. If it is false, Programmed is false for the same Reason.
	Accepted        bool
	Reason, Message string
	Conditions      []metav1.Condition
	Listeners       []ListenerStatus
}

// condition makes a condition.
func condition(generation int64, typ string, ok bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: typ, Status: status, Reason: reason, Message: message, ObservedGeneration: generation}
}

// maxMessage bounds the message of a condition; the API's bound is 32768.
const maxMessage = 1024
