// Package mesh is xds-server's copy of the mesh: one Snapshot for each revision that config-watcher streams, decoded
// and indexed for the look-ups that translators make through package input.
//
// A Snapshot never changes. Snapshot.Apply makes the next one: it copies only the index nodes on the way to what the
// revision changes (copy-on-write B-trees), costs O(changed), and shares everything else with the snapshot before.
//
// Every look-up has a Topic that names its answer. Apply returns the topics whose answers may have changed, also from
// "none" to something: package plan records the topics that a resource was built from and builds it again only then.
//
// A kind of resources is declared in one line of the list kinds (kind.go). The file of the kind, for example
// virtualservice.go, indexes it and has its look-ups and topics.
package mesh
