package storeapi

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/object"
	objectstatus "fairlead.dev/services/config-watcher/internal/status"
)

// Statuses has the status of each version of an object; status.Tracker implements it.
type Statuses interface {
	Rows() []*objectstatus.Row
	// Unwritten says why statuses cannot be written back to a source; nil if they can, or never are.
	Unwritten(source string) error
}

// maxStatusBytes bounds the objects in one answer of Status.
const maxStatusBytes = 8 << 20

// addObjects adds the statuses of the objects that the caller may list and wants.
func (s *Server) addObjects(out *configv1.StatusResponse, wanted func(object.Key) bool) {
	size := 0
	for _, row := range s.statuses.Rows() {
		if !wanted(row.Key) {
			continue
		}
		o := objectStatus(row)
		if size += proto.Size(o); size > maxStatusBytes {
			out.MoreObjects++
			continue
		}
		out.Objects = append(out.Objects, o)
	}
}

func objectStatus(row *objectstatus.Row) *configv1.ObjectStatus {
	out := &configv1.ObjectStatus{
		Key:    &configv1.ObjectKey{ApiVersion: row.APIVersion, Kind: row.Key.Kind, Namespace: row.Key.Namespace, Name: row.Key.Name},
		Source: row.Source, Location: row.Location, InForce: row.InForce, ObservedGeneration: row.Status.Generation,
	}
	for _, c := range row.Status.Conditions {
		out.Conditions = append(out.Conditions, &configv1.Condition{Type: c.Type, Status: c.Text(), Reason: c.Reason, Message: c.Message})
	}
	if row.Status.API != nil {
		addGatewayAPI(out, row.Status.API)
	}
	for _, v := range row.Status.Servers {
		out.Servers = append(out.Servers, &configv1.ServerStatus{Name: v.Name, Port: v.Port, Hosts: v.Hosts, Reason: v.Reason,
			Message: v.Message})
	}
	return out
}

// addGatewayAPI adds what an object of the Gateway API has of its own.
func addGatewayAPI(out *configv1.ObjectStatus, api *objectstatus.API) {
	listener := func(name gatewayv1.SectionName, attached int32, conditions []metav1.Condition) {
		out.Listeners = append(out.Listeners, &configv1.ListenerStatus{Name: string(name), AttachedRoutes: attached,
			Conditions: conditionsOf(conditions)})
	}
	parent := func(ref gatewayv1.ParentReference, conditions []metav1.Condition) {
		out.Parents = append(out.Parents, &configv1.ParentStatus{Parent: parentText(ref, out.GetKey().GetNamespace()),
			Conditions: conditionsOf(conditions)})
	}
	switch {
	case api.Gateway != nil:
		for _, l := range api.Gateway.Listeners {
			listener(l.Name, l.AttachedRoutes, l.Conditions)
		}
		for _, a := range api.Gateway.Addresses {
			out.Addresses = append(out.Addresses, a.Value)
		}
	case api.ListenerSet != nil:
		for _, l := range api.ListenerSet.Listeners {
			listener(l.Name, l.AttachedRoutes, l.Conditions)
		}
	case api.Route != nil:
		for _, p := range api.Route.Parents {
			parent(p.ParentRef, p.Conditions)
		}
	case api.Policy != nil:
		for _, a := range api.Policy.Ancestors {
			parent(a.AncestorRef, a.Conditions)
		}
	}
}

func conditionsOf(list []metav1.Condition) (out []*configv1.Condition) {
	for _, c := range list {
		out = append(out, &configv1.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return out
}

// parentText is "Gateway infra/edge, section web, port 80".
func parentText(ref gatewayv1.ParentReference, namespace string) string {
	kind := gatewayapi.Gateway
	if ref.Kind != nil {
		kind = string(*ref.Kind)
	}
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	text := kind + " " + namespace + "/" + string(ref.Name)
	if ref.SectionName != nil && *ref.SectionName != "" {
		text += ", section " + string(*ref.SectionName)
	}
	if ref.Port != nil {
		text += fmt.Sprintf(", port %d", *ref.Port)
	}
	return text
}
