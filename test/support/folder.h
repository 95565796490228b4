/* One folder of the test program's own under /tmp, and small text files in it. */
#ifndef TEST_FOLDER_H
#define TEST_FOLDER_H

/* Its path, once folder_make has run. */
extern char folder[];

/* Setup and teardown of cmocka, once a program: the folder is there from one to the other, then gone with its files. */
int folder_make(void **state);
int folder_remove(void **state);

/* Reads folder/name: malloc'ed, NUL behind it. Fails the running test if that cannot be or it has more than 1 MiB. */
char *text_read(const char *name);

/* Writes folder/name in place of what was there. Fails the running test if that cannot be. */
void text_write(const char *name, const char *text);

#endif
