// Package mesh holds the mesh as one revision of it states it: immutable, decoded and indexed for the look-ups that building xDS needs.
//
// A Snapshot never changes. Applying a revision copies only the index nodes on the way to what changed (copy-on-write B-trees), so it costs
// O(changed) whatever the size of the mesh, and revisions share everything else.
//
// Every look-up has a Topic that names the answer. Apply returns the topics whose answers may have changed, the negative ones included: a
// caller that has recorded the topics it asked for knows exactly what to do again.
package mesh
