package storeapi

import (
	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
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
	for _, v := range row.Status.Servers {
		out.Servers = append(out.Servers, &configv1.ServerStatus{Name: v.Name, Port: v.Port, Hosts: v.Hosts, Reason: v.Reason,
			Message: v.Message})
	}
	return out
}
