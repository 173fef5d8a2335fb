// Package differential tests that whatever way a proxy came to its configuration, by delta or by the state of the world, over reconnects,
// moves to another replica, dropped streams and rejections, it is what the translators make from scratch.
package differential
