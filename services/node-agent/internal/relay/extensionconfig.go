package relay

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// extensionKeeper receives from an xds-server on a delta stream, and leaves out that extension configs are removed. An
// Envoy that hears of it answers 500 on every listener that names the config, draining ones included: requests on kept
// connections would fail when xds-server is rolled back to a release that knows no slots of policies. Envoy itself
// drops an extension config when no listener names it any more. node-agent announces this by
// contract.KeepsExtensionConfigs.
type extensionKeeper struct{ messageStream }

func (k extensionKeeper) RecvMsg(m any) error {
	if err := k.messageStream.RecvMsg(m); err != nil {
		return err
	}
	if f, ok := m.(*frame); ok && typeURL(f.data) == resource.ExtensionConfigType {
		f.drop(removedField)
	}
	return nil
}

// drop removes the elements of a field from the frame's message. Of a message that is not valid the rest stays, for its
// receiver to refuse.
func (f *frame) drop(field protowire.Number) {
	message := f.data.Materialize()
	kept := make([]byte, 0, len(message))
	for len(message) > 0 {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			kept = append(kept, message...)
			break
		}
		if number != field {
			kept = append(kept, message[:n]...)
		}
		message = message[n:]
	}
	f.free()
	f.data = mem.BufferSlice{mem.SliceBuffer(kept)}
}
